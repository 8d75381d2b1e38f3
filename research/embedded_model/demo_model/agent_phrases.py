"""The wordings of tasks for agents; `#` and `@` are paths, `*` and `~` contents."""

# ruff: noqa: E501 - lists of phrases are read and kept as text

from demo_model import wider
from demo_model.variation import Wordings
from demo_model.words import listed

AND_READ = listed(
    """
, then read it back|, then read it back|, then read it back.| and read it back|, then read it| and then read it back.|, then read the file.| and then show me what it says
, then show me the file|, and check what it says.| and tell me what is in it|. Then read it back.|. Afterwards read it back.|, then read the file back and tell me what it says.| then read it back|; read it back afterwards
, and after that read it again|. Read it back to check.| and confirm by reading it
"""
)
AND_READ_ZH = listed(
    "，然后读回来|，然后读回来。|，再读一遍|，再读一遍。|，然后读取它|，并读取确认|，写完后读一下|，然后读出来给我看|，最后读取这个文件|，再读回来看看|。然后读一遍。|，然后告诉我里面写了什么"
)
AND_LIST = listed(
    ", then list the files| and list the directory.|, then list the directory|. Then list the files.| and show me the files|, then list everything"
)
AND_LIST_ZH = listed("，然后列出文件|，再列出目录。|，然后看看有哪些文件|，最后列出文件。")
TWO = listed(
    """
Write * to # and ~ to @|Write "*" to # and "~" to @.|Create # with * and @ with ~|Create two files: # with "*" and @ with "~"|Make # with the content * and @ with the content ~
Make two files, # containing "*" and @ containing "~".|Put "*" into # and "~" into @|Write * to #, then write ~ to @|Write "*" to #. Then write "~" to @.|Save "*" in # and "~" in @.
Please write * into # and ~ into @.|Make # with * and @ with ~
"""
)
TWO_ZH = listed(
    "把*写入#，把~写入@|把“*”写入#，把“~”写入@。|创建#，内容是*，再创建@，内容是~|创建两个文件：#的内容是“*”，@的内容是“~”。|新建#写*，新建@写~|先把*写到#，再把~写到@|把*存到#，然后把~存到@。"
)
AND_READ_BOTH = listed(
    ", then read both|, then read both back.| and read both files back|. Read them back.|, then read them"
)
AND_READ_BOTH_ZH = listed("，然后都读一遍|，再读回这两个文件|，最后都读回来。")
SEARCH = listed(
    """
Search for *|Search for "*".|Search the files for *|Search the files for "*".|Which file contains "*"?|Which file contains *?|Find "*" in the files.|Find *|Find the file with "*"
Where is "*"?|Look for * in the files|In which file does * stand?
"""
)
SEARCH_ZH = listed(
    "搜索*|搜索“*”。|在文件里搜索*|哪个文件里有“*”？|哪个文件里有*？|查找*|在文件中查找“*”。|找一下*在哪个文件里"
)
LIST_ALL = listed(
    """
List the files|List the files.|List the directory|List the workspace.|What files are there?|Which files are there?|What is in the workspace?|Show me the files|Which files do you have?|ls|List all files
What is in your directory?|List the files in the workspace.|List /workspace|Show me the workspace
"""
)
LIST_ALL_ZH = listed(
    "列出文件|列出文件。|列出目录|有哪些文件？|工作区里有什么？|看看有哪些文件|列出所有文件。|列出工作区的文件|显示文件列表"
)
SYNC = listed(
    """
Sync your context|Sync your context.|Call sync_context|Call sync_context.|Use sync_context now.|sync_context|Write your context window anew|Write down what you know and sync your context.|Renew your context window.|Save your context
Please sync the context|Sync the context now
"""
)
SYNC_ZH = listed(
    "同步上下文|同步上下文。|请同步你的上下文|调用sync_context|调用 sync_context。|更新上下文窗口|重写你的上下文窗口。|保存上下文"
)
THEN_SYNC = listed(
    ", then sync your context|, then call sync_context.| and sync your context.|. Then sync your context.| and then sync the context"
)
THEN_SYNC_ZH = listed("，然后同步上下文|，再调用sync_context。|，最后同步上下文。")
SIDE_BY_SIDE = listed(
    """
Make # in parallel|Make # in parallel.|In parallel, make #|Create # in parallel.|Please make # in parallel|Create # at the same time|Make # with agents in parallel
Use two agents to make #|Use sub-agents to create #.|Let your agents make #|Spawn an agent for each file: #|One agent for each: #|Delegate this: make #|Make #, each by an agent of its own.
Let sub-agents create # in parallel.|Have # made in parallel by sub-agents
"""
)
SIDE_BY_SIDE_ZH = listed(
    "并行创建#|并行地创建#。|请并行创建#|同时创建#|用两个智能体创建#|用子智能体并行创建#。|让子智能体分别创建#|每个文件用一个智能体：#|委派下去：创建#|让两个智能体同时写#|分别由子智能体创建#。"
)
PART = listed(
    '# with *|# with "*"|# with the content *|# with the content "*"|# containing "*"|# containing *|# that says "*"'
)
PART_ZH = listed("#，内容是*|#（内容是*）|#，内容为“*”|#写*|#，内容“*”")

# The same in people's own words.
AND_READ = Wordings(AND_READ, wider.AND_READ)
AND_READ_ZH = Wordings(AND_READ_ZH, wider.AND_READ_ZH)
AND_LIST = Wordings(AND_LIST, wider.AND_LIST)
AND_LIST_ZH = Wordings(AND_LIST_ZH, wider.AND_LIST_ZH)
TWO = Wordings(TWO, wider.TWO, request=True)
TWO_ZH = Wordings(TWO_ZH, wider.TWO_ZH, request=True)
AND_READ_BOTH = Wordings(AND_READ_BOTH, wider.AND_READ_BOTH)
AND_READ_BOTH_ZH = Wordings(AND_READ_BOTH_ZH, wider.AND_READ_BOTH_ZH)
SEARCH = Wordings(SEARCH, wider.SEARCH, request=True)
SEARCH_ZH = Wordings(SEARCH_ZH, wider.SEARCH_ZH, request=True)
LIST_ALL = Wordings(LIST_ALL, wider.LIST_ALL, request=True)
LIST_ALL_ZH = Wordings(LIST_ALL_ZH, wider.LIST_ALL_ZH, request=True)
SIDE_BY_SIDE = Wordings(SIDE_BY_SIDE, wider.SIDE_BY_SIDE, request=True)
SIDE_BY_SIDE_ZH = Wordings(SIDE_BY_SIDE_ZH, wider.SIDE_BY_SIDE_ZH, request=True)
PART = Wordings(PART, wider.PART)
PART_ZH = Wordings(PART_ZH, wider.PART_ZH)
