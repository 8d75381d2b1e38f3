// What can be seen of a session, in the order of the tabs.

import { AgentsView } from "./agents_view.js";
import { ConversationView } from "./conversation_view.js";
import { FilesView } from "./files_view.js";
import { SettingsView } from "./settings_view.js";
import { TimelineView } from "./timeline_view.js";
import { TranscriptView } from "./transcript_view.js";

export const VIEWS = [
  { name: "conversation", title: "Conversation", Type: ConversationView },
  { name: "agents", title: "Agents", Type: AgentsView },
  { name: "files", title: "Files", Type: FilesView },
  { name: "timeline", title: "Timeline", Type: TimelineView },
  { name: "transcript", title: "Transcript", Type: TranscriptView },
  { name: "settings", title: "Settings", Type: SettingsView },
];
