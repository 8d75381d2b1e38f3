// What can be seen of a session, in the order of the tabs.

import { AgentsView } from "./agents_view.js";
import { ConversationView } from "./conversation_view.js";
import { FilesView } from "./files_view.js";
import { SettingsView } from "./settings_view.js";
import { TimelineView } from "./timeline_view.js";
import { t } from "./text.js";
import { TranscriptView } from "./transcript_view.js";

export const VIEWS = [
  { name: "conversation", title: t("Conversation"), Type: ConversationView },
  { name: "agents", title: t("Agents"), Type: AgentsView },
  { name: "files", title: t("Files"), Type: FilesView },
  { name: "timeline", title: t("Timeline"), Type: TimelineView },
  { name: "transcript", title: t("Transcript"), Type: TranscriptView },
  { name: "settings", title: t("Settings"), Type: SettingsView },
];
