"""The wordings of requests to tools; `#` is a path, `*` and `@` what the task fills in."""

# ruff: noqa: E501 - lists of phrases are read and kept as text

from demo_model import wider
from demo_model.variation import Wordings
from demo_model.words import listed

WRITE = listed("""
Write * to #|Write * to the file #|Write * into #|Save * to #|Save * in the file #|Put * into #|Store * in #
Create a file # with the content *|Create the file # with the content *|Create # containing *|Make a file # that says *
Create a file named # with the content *|Create a file called # with the text *|Write a file # with the content: *
Please write * to #|Please create # with the content *|Write to # the text: *|write_file # with content *
""")
WRITE_QUOTED = listed("""
Write "*" to #.|Write "*" to the file #|Write "*" into #|Save "*" to #.|Create a file # with the content "*".|Put "*" into #
Create # with the content "*"|Create a file named # containing "*".|Please write "*" to #.|Save the text "*" in #
Write the text "*" to the file #.|Create a file called # with the text "*".|Write '*' to #|Use write_file to write "*" to #.
""")
WRITE_BLOCK = ["Write this to #:\n*", "Create # with this content:\n*", "Save to #:\n*"]
WRITE_ZH = listed(
    "把*写入#|把*写到#|将*写入文件#|创建文件#，内容是*|创建文件#，内容为*|新建#，内容：*|请把*保存到#|把*存到#|写文件#，内容：*"
)
WRITE_QUOTED_ZH = listed(
    '把“*”写入#。|把“*”写到#|将“*”写入文件#。|创建文件#，内容是“*”。|请创建#，内容为“*”|把“*”保存到#。|把"*"写入#|请把"*"写入文件#。'
)
WRITE_BLOCK_ZH = ["把下面的内容写入#：\n*", "创建#，内容如下：\n*"]
READ = listed("""
Read #|Read the file #.|Read #.|Show me #|Show me the content of #.|What is in #?|What does # say?|Open #|Open the file #.
Please read #|Please read the file #|Print the file #|Can you read #?|Display # please|What does the file # contain?
What is in the file #?|Let me see #|Use read_file on #|read #
""")
READ_ZH = listed(
    "读取#|读取文件#。|读一下#|打开#|请读取文件#|#里有什么？|#的内容是什么？|给我看看#|请打开文件#。|显示#的内容|查看#|文件#里写了什么？"
)
READ_LINES = listed("""
Read lines @ to * of #|Read # from line @ to *.|Show me lines @ to * of #.|Show lines @-* of #|Read lines @-* of the file #
Please read # from line @ to line *
""")
READ_LINES_ZH = listed("读取#的第@到*行|读#第@行到第*行。|显示#的@到*行|请读取文件#的第@行到第*行|查看#第@-*行")
LIST = listed("""
List #|List the directory #.|List the files in #|What is in the directory #?|What is in the folder #?|Show me the files in #
Which files are in #?|Show the directory #|Please list #|List the folder #.|What files are in the folder #?|List all files in #.
""")
LIST_ZH = listed(
    "列出#|列出目录#。|列出#里的文件|#目录里有什么？|文件夹#里有哪些文件？|查看目录#|请列出#目录|显示#里的文件|看看#目录下有什么"
)
LIST_HERE = listed(
    "List the files|List the files here.|What files are here?|Show me the files.|List the current directory|Which files are there?"
)
LIST_HERE_ZH = listed("列出文件|列出当前目录。|这里有哪些文件？|看看有什么文件|列出当前目录的文件")
RUN = listed("""
Run *|Run the command *|Execute *|Execute the command *|Please run *|Run this command: *|Execute: *|Please execute *
Run in the shell: *|Can you run *|run *|Run this: *|Use the shell to run *
""")
RUN_QUOTED = listed("""
Run "*".|Run `*`|Run the command "*".|Execute `*`.|Please run `*`|Run the command `*`.|Execute the command "*"|Please run "*".
Run '*'|Can you run `*`?
""")
RUN_ZH = listed("运行*|执行*|执行命令*|运行命令*|请运行*|请执行命令：*|运行命令：*|执行：*|在终端运行*")
RUN_QUOTED_ZH = listed('运行“*”。|执行`*`|执行命令“*”|运行命令`*`。|请运行`*`|请执行“*”。|运行"*"')
RUN_IN = listed(
    'Run `*` in @|Run * in the directory @|Execute `*` in @.|In @, run *|In the directory @ run `*`|Run "*" in @'
)
RUN_IN_ZH = listed("在@里运行*|在目录@执行`*`|在@目录下运行`*`|到@运行*|在@执行命令*")
REASONS = [
    "file not found", "no such file or directory", "permission denied", "access denied", "not a directory",
    "the path is outside the workspace", "time-out", "command not found", "is a directory", "disk full",
]  # fmt: skip

# The same in people's own words.
WRITE = Wordings(WRITE, wider.WRITE, request=True)
WRITE_ZH = Wordings(WRITE_ZH, wider.WRITE_ZH, request=True)
WRITE_QUOTED = Wordings(WRITE_QUOTED, wider.WRITE_QUOTED, request=True)
WRITE_QUOTED_ZH = Wordings(WRITE_QUOTED_ZH, wider.WRITE_QUOTED_ZH, request=True)
READ = Wordings(READ, wider.READ, request=True)
READ_ZH = Wordings(READ_ZH, wider.READ_ZH, request=True)
LIST = Wordings(LIST, wider.LIST, request=True)
LIST_ZH = Wordings(LIST_ZH, wider.LIST_ZH, request=True)
