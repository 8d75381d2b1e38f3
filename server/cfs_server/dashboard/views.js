// What can be seen of a session, in the order of the tabs.

import { AgentsView } from "./agents_view.js";
import { ConversationView } from "./conversation_view.js";
import { FilesView } from "./files_view.js";
import { SettingsView } from "./settings_view.js";
import { t } from "./text.js";
import { TimelineView } from "./timeline_view.js";
import { TranscriptView } from "./transcript_view.js";

export const VIEWS = [
  { name: "conversation", title: t("Conversation"), icon: "chat", Type: ConversationView },
  { name: "agents", title: t("Agents"), icon: "columns", Type: AgentsView },
  { name: "files", title: t("Files"), icon: "folder", Type: FilesView },
  { name: "timeline", title: t("Timeline"), icon: "timeline", Type: TimelineView },
  { name: "transcript", title: t("Transcript"), icon: "session", Type: TranscriptView },
  { name: "settings", title: t("Settings"), icon: "settings", Type: SettingsView },
];
