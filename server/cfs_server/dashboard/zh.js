// Chinese. The keys are the English texts in the code; tests/dashboard/text.test.mjs checks that none is missing.

/** @type {Record<string, string>} */
export const ZH = {
  // Times and numbers
  "now": "刚刚",
  "No date": "无日期",
  "Today": "今天",
  "Yesterday": "昨天",
  "Previous 7 days": "过去 7 天",
  "Previous 30 days": "过去 30 天",

  // Logging in
  "This token is not valid.": "此令牌无效。",
  "Your token is no longer valid.": "您的令牌已失效。",
  "This server requires an access token. It was printed when the token was created with:":
    "此服务器需要访问令牌。创建令牌时会打印出来，命令为：",
  "Token": "令牌",
  "Log in": "登录",
  "Log out": "退出登录",

  // The frame
  "Connecting": "正在连接",
  "Live": "已连接",
  "Connection lost. Reconnecting": "连接已断开，正在重新连接",
  "Sessions": "会话",
  "{n} session": "{n} 个会话",
  "{n} sessions": "{n} 个会话",
  "Search": "搜索",
  "Search sessions and messages": "搜索会话和消息",
  "Show only working sessions": "只显示工作中的会话",
  "Messages found": "找到的消息",
  "{n} message": "{n} 条消息",
  "{n} messages": "{n} 条消息",
  "{n} and more messages": "{n} 条以上消息",
  "Hide the sidebar": "隐藏侧边栏",
  "Show the sidebar": "显示侧边栏",
  "Hide or show the sidebar": "隐藏或显示侧边栏",
  "New session": "新建会话",
  "New session with a name": "新建并命名会话",
  "Menu": "菜单",
  "Close": "关闭",
  "{session} failed: {error}": "{session} 失败：{error}",
  "{session} has answered": "{session} 已回复",
  "{session} asks for permission": "{session} 请求许可",

  // The tree
  "idle": "空闲",
  "working": "工作中",
  "paused": "已暂停",
  "waits for an agent": "等待智能体",
  "{n} tok": "{n} 词元",
  "{n} token": "{n} 个词元",
  "{n} tokens": "{n} 个词元",
  "changed {age} ago": "{age}前更新",
  "{n} question": "{n} 个问题",
  "{n} questions": "{n} 个问题",
  "{n} of {all} working": "{all} 个中有 {n} 个在工作",
  "{n} below": "下级 {n} 个",
  "{n} waiting": "{n} 条等待中",

  // The home view
  "Message": "消息",
  "Send": "发送",
  "Ask anything. A new session begins.": "随便问点什么，即可开始新会话。",
  "What shall we work on?": "今天做点什么？",
  "Model:": "模型：",
  "A toy of a few megabytes, so that everything works at once. For real answers:":
    "这是只有几兆字节的演示模型，开箱即用。想要真正的回答，请运行：",
  "Examples": "示例",
  "From your shell": "在终端中使用",
  "The same sessions, from your shell": "同样的会话，也可在终端中使用",
  "My name is Alice. What can you do?": "我叫小明。你能做什么？",
  "Tell me a joke.": "讲个笑话。",
  "What is 17 + 25?": "17 + 25 等于多少？",
  "Hello! My favourite colour is green.": "你好！我最喜欢绿色。",
  "Explain what a Merkle tree is, with an example.": "举例说明什么是默克尔树。",
  "Write a Python function that merges two sorted lists.": "写一个合并两个有序列表的 Python 函数。",
  "Compare REST and gRPC in a table.": "用表格比较 REST 和 gRPC。",
  "Draft a polite reply that declines a meeting.": "起草一封婉拒会议的回复。",

  // The palette and the keys
  "Command palette": "命令面板",
  "Sessions and actions": "会话和操作",
  "Go to a session or run an action": "前往会话或执行操作",
  "Show: {view}": "显示：{view}",
  "Search messages for “{query}”": "在消息中搜索“{query}”",
  "Keyboard shortcuts": "键盘快捷键",
  "Next session": "下一个会话",
  "Previous session": "上一个会话",
  "Edit your last message": "编辑上一条消息",
  "Write a message": "写消息",
  "System theme": "跟随系统主题",
  "Light theme": "浅色主题",
  "Dark theme": "深色主题",
  "Browser's language": "跟随浏览器语言",

  // Making a session
  "Name": "名称",
  "Leave the name empty for a random one. To create a sub-session, write parent/child.":
    "名称留空则随机生成。要创建子会话，请写“上级/下级”。",
  "Create": "创建",

  // The views of a session
  "Conversation": "对话",
  "Agents": "智能体",
  "Files": "文件",
  "Timeline": "时间线",
  "Transcript": "文本记录",
  "Settings": "设置",
};
