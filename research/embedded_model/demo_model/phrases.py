"""The fixed phrases of the dialogues; `*` and `#` stand for what a scene fills in."""

# ruff: noqa: E501, SIM905 - lists of words and phrases are read and kept as text

from demo_model import wider, words
from demo_model.variation import Wordings
from demo_model.words import listed

TELL_NAME = listed("""
My name is *.|My name is *.|My name is *.|I am *.|I'm *.|Call me *.|Hi, my name is *.|Hello, I am *.|Hello! I'm *.
Please call me *.|My name's *.|You can call me *.|Hi! I'm *, nice to meet you.|People call me *.|Hey, * here.
The name is *.|Good morning, my name is *.|My name is * and I like tea.|I am called *.|Hello, my name is *. How are you?
Remember my name: *.|Let me introduce myself: I am *.|Please remember that my name is *.|This is *.
""")
TELL_NAME_ZH = listed("""
我叫*|我叫*。|我叫*。|我的名字是*。|我是*。|你好，我叫*。|你好，我是*|您好，我的名字叫*。|叫我*吧。|请叫我*。|大家都叫我*。
我的名字叫*|我名叫*。|你可以叫我*。|嗨，我叫*，很高兴认识你。|请记住我的名字：*。|早上好，我是*。|我叫*，请多关照。|请记住，我叫*。
""")
ASK_NAME = listed("""
What is my name?|What is my name?|What is my name?|What's my name?|Who am I?|Do you remember my name?|Tell me my name.
Can you tell me my name?|Do you know my name?|Say my name.|What am I called?|Please tell me my name.|And what is my name?
Do you still know my name?|What was my name?|Could you repeat my name?|What did I say my name was?|So, who am I?
""")
ASK_NAME_ZH = listed("""
我叫什么？|我叫什么？|我叫什么名字？|我的名字是什么？|我是谁？|你记得我的名字吗？|你还记得我叫什么吗？|请说出我的名字。|你知道我是谁吗？
告诉我我的名字。|我刚才说我叫什么？|你知道我叫什么吗？|那我叫什么呢？|请问我叫什么名字？
""")
CORRECT_NAME = listed("""
Actually, call me *.|Actually, my name is *.|Sorry, my name is *.|No, I am *.|From now on, call me *.|I changed my name to *.
My new name is *.|Wait, I meant *.|Please call me * instead.|Correction: my name is *.
""")
CORRECT_NAME_ZH = listed(
    "其实我叫*。|不对，我叫*。|我改名叫*了。|以后叫我*。|抱歉，我的名字是*。|还是叫我*吧。|更正一下，我叫*。"
)
KIN = """
friend brother sister mother father dog cat boss teacher wife husband son daughter neighbour colleague horse uncle aunt
""".split()
KIN_ZH = "朋友 哥哥 弟弟 姐姐 妹妹 妈妈 爸爸 狗 猫 老板 老师 妻子 丈夫 儿子 女儿 邻居 同事".split()
TELL_KIN = listed("""
My # is called *.|My #'s name is *.|I have a # called *.|My # is named *.|The name of my # is *.
""")
TELL_KIN_ZH = listed("我的#叫*。|我#叫*。|我#的名字是*。|我有个#叫*。|我的#名叫*。")
ASK_KIN = listed("""
What is my #'s name?|What is my # called?|What's the name of my #?|Do you remember my #'s name?|What is the name of my #?
Who is my #?
""")
ASK_KIN_ZH = listed("我的#叫什么？|我#叫什么？|我#叫什么名字？|我的#叫什么名字？|我#的名字是什么？|你记得我#的名字吗？")

FAVOURITES = {
    "colour": words.COLOURS, "color": words.COLOURS, "food": words.FOODS, "animal": words.ANIMALS,
    "city": words.CITIES, "sport": words.SPORTS, "number": [str(number) for number in range(100)],
    "word": words.ENGLISH, "fruit": "apples pears plums grapes cherries mangoes bananas lemons".split(),
    "drink": "tea coffee water milk juice cocoa".split(), "season": "spring summer autumn winter".split(),
    "book": words.ENGLISH, "game": words.SPORTS, "song": words.ENGLISH,
}  # fmt: skip
FAVOURITES_ZH = {
    "颜色": words.COLOURS_ZH, "食物": words.FOODS_ZH, "动物": words.ANIMALS_ZH, "城市": words.CITIES_ZH,
    "运动": words.SPORTS_ZH, "数字": [str(number) for number in range(100)], "词": words.CHINESE,
    "水果": "苹果 香蕉 西瓜 葡萄 桃子 梨 草莓 芒果".split(), "季节": "春天 夏天 秋天 冬天".split(),
    "饮料": "茶 咖啡 牛奶 果汁 可乐 水".split(), "书": words.CHINESE,
}  # fmt: skip
TELL_FAVOURITE = listed("""
My favourite # is *.|My favorite # is *.|My favourite # is *.|I like * best: it is my favourite #.|* is my favourite #.
Remember that my favourite # is *.|The # I like most is *.
""")
TELL_FAVOURITE_ZH = listed("我最喜欢的#是*。|我最喜欢的#是*|我最爱的#是*。|请记住，我最喜欢的#是*。|*是我最喜欢的#。")
ASK_FAVOURITE = listed("""
What is my favourite #?|What is my favorite #?|What's my favourite #?|Do you remember my favourite #?
Which # do I like most?|Tell me my favourite #.
""")
ASK_FAVOURITE_ZH = listed("我最喜欢的#是什么？|我最喜欢什么#？|你记得我最喜欢的#吗？|我最爱的#是什么？")
FACTS = listed("""
secret word|password|code|number|meeting room|project name|key|answer|address|deadline|budget|file name|token|code word
magic word|phone number|city|town|plan|title|topic|secret|secret number|door code|version
""")
FACTS_ZH = listed(
    "暗号|密码|代码|号码|会议室|项目名称|钥匙|答案|地址|截止日期|预算|文件名|口令|电话号码|城市|计划|标题|主题|秘密|房间号"
)
TELL_FACT = listed("""
The # is *.|Remember: the # is *.|Please remember that the # is *.|Remember the #: *.|Note that the # is *.
Our # is *.|Keep in mind that the # is *.
""")
TELL_FACT_ZH = listed("#是*。|请记住：#是*。|记住#是*。|请记住，#是*|#：*。")
ASK_FACT = listed(
    "What is the #?|What's the #?|What was the #?|Tell me the #.|Do you remember the #?|Which # did I give you?"
)
ASK_FACT_ZH = listed("#是什么？|#是多少？|告诉我#。|你记得#吗？|请问#是什么？")
REPEAT = listed("""
Repeat after me: *|Repeat: *|Please repeat: *|Say: *|Repeat this: *|Say "*"|Repeat "*"|Please say "*".|Echo: *|echo *
Repeat the phrase "*".|Repeat exactly: *|Please repeat after me: *|Say *|Repeat the words "*"|Repeat *
""")
REPEAT_ZH = listed(
    "请重复：*|重复：*|跟我说：*|请跟我说：*|重复一遍：*|请重复“*”|说“*”|请说：*|跟我读：*|重复“*”。|重复*|请说*"
)
SUMS = listed("""
What is # + *?|What is # @ *?|# + *|#+*|# @ *|How much is # @ *?|Calculate # + *.|#+*=?|# + * = ?|What's # + *?|What is #+*?
Compute # @ *.|Please calculate: # + *
""")
SUMS_ZH = listed("#+*|# + *|#+*等于多少？|#@*等于几？|#@*是多少？|计算#+*|#+*=？|请问#@*等于多少？|#@*|# + * 等于几？")
ASK_JOKE = listed("""
Tell me a joke|Tell me a joke.|Tell a joke.|Do you know a joke?|Make me laugh.|Another joke, please.|Can you tell me a joke?
Please tell me a joke.|I want to hear a joke.|One more joke.|Say something funny.|A joke, please.
""")
ASK_JOKE_ZH = listed(
    "讲个笑话|讲个笑话。|给我讲个笑话吧。|说个笑话。|你会讲笑话吗？|再讲一个笑话。|逗我笑一下。|请讲一个笑话。|来个笑话"
)
JOKES = [
    "Why did the file go to school? It wanted to be well read.",
    "Why did the computer sneeze? It had a virus.",
    "Why was the folder so calm? It kept everything inside.",
    "What do you call a sleeping server? At rest.",
]
JOKES_ZH = [
    "为什么电脑会打喷嚏？因为它中了病毒。",
    "为什么文件要去上学？因为它想多被读几遍。",
    "为什么服务器不怕冷？因为它有很多进程。",
    "为什么程序员喜欢黑夜？因为白天有虫子。",
]
HELLO, HELLO_ZH = "Hello! How can I help you?", "你好！有什么可以帮您？"
ABOUT = "I am a small demonstration model that runs inside CFS."
ABOUT_ZH = "我是一个在 CFS 里运行的小型演示模型。"
CANNOT = "I am only a small demonstration model, so I cannot help with that."
CANNOT_ZH = "我只是一个小型演示模型，这个我帮不了您。"
CAN = "I can remember names, add small numbers, tell a joke, repeat a phrase and call simple tools."
CAN_ZH = "我能记住名字，算简单的加减法，讲笑话，重复一句话，还能调用简单的工具。"
SMALL_TALK: list[tuple[list[str], str]] = [
    (["hi", "Hi", "Hello", "hello", "Hello!", "Hi!", "Hey", "hey there", "Hello there.", "Hi there!"], HELLO),
    (["Good morning.", "Good evening.", "Good afternoon!", "Greetings."], HELLO),
    (["hi", "hello", "Hello, are you there?", "Are you there?", "ping"], HELLO),
    (["How are you?", "How are you doing?", "How do you do?", "How are you today?"], "I am fine, thank you. And you?"),
    (["I am fine.", "I'm fine, thanks.", "I am good.", "Very well."], "I am glad to hear that."),
    (["Thank you.", "Thanks!", "Thank you very much.", "thanks a lot", "Thx"], "You are welcome!"),
    (["Goodbye.", "Bye!", "See you later.", "bye", "Good night."], "Goodbye! See you soon."),
    (["test", "This is a test.", "Test message", "test message", "testing", "A test"], "I received your message."),
    (["What is your name?", "Who are you?", "What are you?", "Introduce yourself.", "Are you a robot?"], ABOUT),
    (["What can you do?", "help", "Help me.", "How can you help me?", "What do you know?"], CAN),
    (["OK", "ok", "Okay.", "All right.", "Good.", "Great!", "Nice.", "Yes.", "No.", "I see.", "Cool"], "All right."),
]
SMALL_TALK_ZH: list[tuple[list[str], str]] = [
    (["你好", "你好！", "您好", "嗨", "你好啊", "早上好", "晚上好。", "大家好", "哈喽", "下午好"], HELLO_ZH),
    (["你好", "你好吗", "在吗？", "有人吗？"], HELLO_ZH),
    (["你怎么样？", "最近好吗？", "今天过得怎么样？"], "我很好，谢谢。您呢？"),
    (["谢谢", "谢谢你。", "非常感谢！", "多谢"], "不客气！"),
    (["再见", "再见！", "拜拜", "晚安。", "下次见"], "再见！期待下次聊天。"),
    (["测试消息", "测试", "这是一条测试消息。", "测试一下", "这是测试"], "我收到了您的消息。"),
    (["你是谁？", "你叫什么？", "你叫什么名字？", "介绍一下你自己。", "你是机器人吗？"], ABOUT_ZH),
    (["你会什么？", "你能做什么？", "帮助", "你有什么功能？"], CAN_ZH),
    (["好的", "好", "嗯", "知道了。", "明白了", "行", "可以。", "不错！", "是的。"], "好的。"),
]
KNOWLEDGE = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("What is the capital of Germany?", "The capital of Germany is Berlin."),
    ("What is the capital of China?", "The capital of China is Beijing."),
    ("What is the capital of Japan?", "The capital of Japan is Tokyo."),
    ("What colour is the sky?", "The sky is blue."),
    ("What colour is grass?", "Grass is green."),
    ("How many days are in a week?", "A week has seven days."),
    ("What is water made of?", "Water is made of hydrogen and oxygen."),
]
KNOWLEDGE_ZH = [
    ("中国的首都是哪里？", "中国的首都是北京。"),
    ("法国的首都是哪里？", "法国的首都是巴黎。"),
    ("日本的首都是哪里？", "日本的首都是东京。"),
    ("天空是什么颜色？", "天空是蓝色的。"),
    ("草是什么颜色？", "草是绿色的。"),
    ("一周有几天？", "一周有七天。"),
]
ROLES = listed("""
a pirate|a Python expert|a teacher|a doctor|a chef|a lawyer|a poet|a robot|a translator|a helpful assistant|a cat|a wizard
a historian|a king|a travel guide|a friendly librarian|an astronaut|an engineer|an artist|a Rust expert|a data scientist
a math teacher|a detective|a farmer|a singer|a code reviewer|a planner
""")
ROLES_ZH = listed(
    "Python专家|海盗|老师|医生|厨师|律师|诗人|机器人|翻译|猫|巫师|历史学家|国王|导游|图书管理员|宇航员|工程师|画家|助手|数学老师|侦探"
)
GIVE_ROLE = listed("""
You are *.|You are *.|You are * now.|Act as *.|Pretend to be *.|From now on you are *.|Please act as *.|Imagine you are *.
""")
GIVE_ROLE_ZH = listed("你是*|你是*。|你现在是*。|请扮演*。|从现在起你是*。|假装你是*。|你是一个*。|你是一位*。")
ASK_ROLE = listed("Who are you?|What are you?|Who are you now?|What is your role?|What is your job?")
ASK_ROLE_ZH = listed("你是谁？|你是做什么的？|你现在是谁？|你的角色是什么？|你的工作是什么？")
BEYOND = listed("""
build it|Build it.|Write a poem about *.|Explain *.|What is the meaning of *?|Tell me about *.|Write a story about a *.
Fix the *.|Can you help me with *?|Why is the * so small?|Do it.|Go on.|Continue|Write a program for *.|Deploy it.
Summarise the text about *.|Translate * into French.|What do you think of *?|Where is the *?|How do I cook *?|Make it faster.
Write code that sorts a *.|Plan a trip to *.|Who invented the *?|What is the weather like?|What time is it?|Start the task.
""")
BEYOND_ZH = listed(
    "写一首关于*的诗。|解释一下*。|*是什么意思？|帮我修好*。|写一个关于*的故事。|为什么*这么小？|继续|做吧|总结一下*。|开始构建"
    "|你觉得*怎么样？|*在哪里？|怎么做*？|今天天气怎么样？|现在几点？|写一段代码|把*翻译成英文。|开始任务|帮我写一篇*的文章"
)

# The same in people's own words.
TELL_NAME = Wordings(TELL_NAME, wider.TELL_NAME)
TELL_NAME_ZH = Wordings(TELL_NAME_ZH, wider.TELL_NAME_ZH)
ASK_NAME = Wordings(ASK_NAME, wider.ASK_NAME)
ASK_NAME_ZH = Wordings(ASK_NAME_ZH, wider.ASK_NAME_ZH)
CORRECT_NAME = Wordings(CORRECT_NAME, wider.CORRECT_NAME)
CORRECT_NAME_ZH = Wordings(CORRECT_NAME_ZH, wider.CORRECT_NAME_ZH)
TELL_KIN = Wordings(TELL_KIN, wider.TELL_KIN)
TELL_KIN_ZH = Wordings(TELL_KIN_ZH, wider.TELL_KIN_ZH)
ASK_KIN = Wordings(ASK_KIN, wider.ASK_KIN)
ASK_KIN_ZH = Wordings(ASK_KIN_ZH, wider.ASK_KIN_ZH)
TELL_FAVOURITE = Wordings(TELL_FAVOURITE, wider.TELL_FAVOURITE)
TELL_FAVOURITE_ZH = Wordings(TELL_FAVOURITE_ZH, wider.TELL_FAVOURITE_ZH)
ASK_FAVOURITE = Wordings(ASK_FAVOURITE, wider.ASK_FAVOURITE)
ASK_FAVOURITE_ZH = Wordings(ASK_FAVOURITE_ZH, wider.ASK_FAVOURITE_ZH)
TELL_FACT = Wordings(TELL_FACT, wider.TELL_FACT)
TELL_FACT_ZH = Wordings(TELL_FACT_ZH, wider.TELL_FACT_ZH)
ASK_FACT = Wordings(ASK_FACT, wider.ASK_FACT)
ASK_FACT_ZH = Wordings(ASK_FACT_ZH, wider.ASK_FACT_ZH)
REPEAT = Wordings(REPEAT, wider.REPEAT, request=True)
REPEAT_ZH = Wordings(REPEAT_ZH, wider.REPEAT_ZH, request=True)
SUMS = Wordings(SUMS, wider.SUMS)
SUMS_ZH = Wordings(SUMS_ZH, wider.SUMS_ZH)
ASK_JOKE = Wordings(ASK_JOKE, wider.ASK_JOKE, request=True)
ASK_JOKE_ZH = Wordings(ASK_JOKE_ZH, wider.ASK_JOKE_ZH, request=True)
GIVE_ROLE = Wordings(GIVE_ROLE, wider.GIVE_ROLE)
GIVE_ROLE_ZH = Wordings(GIVE_ROLE_ZH, wider.GIVE_ROLE_ZH)
ASK_ROLE = Wordings(ASK_ROLE, wider.ASK_ROLE)
ASK_ROLE_ZH = Wordings(ASK_ROLE_ZH, wider.ASK_ROLE_ZH)
SPOKEN_PLUS, SPOKEN_PLUS_ZH = Wordings([], wider.SPOKEN_PLUS), Wordings([], wider.SPOKEN_PLUS_ZH)
SPOKEN_MINUS, SPOKEN_MINUS_ZH = Wordings([], wider.SPOKEN_MINUS), Wordings([], wider.SPOKEN_MINUS_ZH)
WIDER_TALK = [
    (Wordings([], wider.GREETING), HELLO), (Wordings([], wider.GREETING), HELLO),
    (Wordings([], wider.WELLNESS), "I am fine, thank you. And you?"), (Wordings([], wider.THANKS), "You are welcome!"),
    (Wordings([], wider.BYE), "Goodbye! See you soon."),
]  # fmt: skip
WIDER_TALK_ZH = [
    (Wordings([], wider.GREETING_ZH), HELLO_ZH), (Wordings([], wider.GREETING_ZH), HELLO_ZH),
    (Wordings([], wider.WELLNESS_ZH), "我很好，谢谢。您呢？"), (Wordings([], wider.THANKS_ZH), "不客气！"),
    (Wordings([], wider.BYE_ZH), "再见！期待下次聊天。"),
]  # fmt: skip
_NUMBERS = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen twenty
""".split()
_NUMBERS_ZH = "零 一 二 三 四 五 六 七 八 九 十 十一 十二 十三 十四 十五 十六 十七 十八 十九 二十".split()


def number_word(number: int, language: str) -> str:
    """A number up to twenty as a word."""
    return (_NUMBERS_ZH if language == "zh" else _NUMBERS)[number]
