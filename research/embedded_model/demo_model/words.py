"""Words, phrases, file names, contents and commands that dialogues are filled with."""

# ruff: noqa: SIM905 - lists of words are read and kept as text

from random import Random

from demo_model.names import COMMON_HAN, made_up

ENGLISH = """
apple river stone cloud garden window silver paper music forest bridge candle orange winter summer planet rocket button
castle dragon bottle market mirror pencil pocket rabbit season shadow spring street ticket tunnel valley violet yellow
anchor basket beacon branch camera carpet cherry circle copper cotton desert dinner engine fabric family farmer father
feather finger flower guitar hammer harbor island jacket jungle kitchen ladder lemon letter lion lizard magnet marble
meadow melody monkey mother motor mountain needle night ocean olive onion oven owl panda parrot pepper piano pillow
pirate plate pony prince puzzle quiet rain ribbon ring road robot rose sail sand school ship shoe snow sofa spoon
square star storm sugar sunset table tiger tower train tree turtle uncle village wagon water whale wheel wind wolf
wonder yard zebra big small red blue green old new fast slow warm cold happy brave clever gentle bright dark heavy
open close run walk sing read write build carry follow learn listen make move play push reach send stand start stop
take talk test think touch travel turn visit wait watch work data file list note plan report result server value
hello world good morning today tomorrow every some many little with under over near behind between never always often
please deploy release version update error warning success done final draft budget invoice meeting agenda summary
""".split()
CHINESE = """
苹果 河流 石头 天空 花园 窗户 音乐 森林 大桥 蜡烛 冬天 夏天 星球 火箭 城堡 市场 镜子 铅笔 兔子 影子 春天 街道 山谷
黄色 相机 樱桃 沙漠 晚饭 引擎 家庭 农民 羽毛 手指 花朵 吉他 海港 岛屿 厨房 梯子 柠檬 书信 狮子 草地 旋律 猴子 母亲
高山 夜晚 海洋 洋葱 熊猫 钢琴 枕头 道路 机器人 玫瑰 帆船 学校 雪花 沙发 勺子 星星 暴雨 白糖 日落 桌子 老虎 高塔 火车
大树 乌龟 村庄 清水 鲸鱼 车轮 微风 奇迹 斑马 快乐 勇敢 聪明 温柔 明亮 学习 旅行 工作 数据 文件 计划 报告 结果 服务
你好 世界 早上 今天 明天 永远 经常 测试 完成 会议 总结 预算 更新 版本 成功 项目 任务 重要 记录 我们 大家 一起 喜欢
""".split()
COLOURS = "red blue green yellow purple orange pink black white brown grey silver gold violet turquoise".split()
FOODS = "pizza noodles rice sushi bread soup cheese pasta curry salad dumplings chocolate pancakes tofu burgers".split()
ANIMALS = "cat dog horse tiger panda eagle whale fox rabbit owl dolphin lion turtle wolf penguin".split()
CITIES = "Paris London Berlin Tokyo Beijing Rome Madrid Oslo Vienna Cairo Lima Sydney Toronto Seoul Dublin".split()
SPORTS = "tennis football chess swimming running cycling hockey golf climbing rowing skiing dancing".split()
COLOURS_ZH = "红色 蓝色 绿色 黄色 紫色 橙色 粉色 黑色 白色 棕色 灰色 金色 银色".split()
FOODS_ZH = "面条 米饭 饺子 火锅 包子 烤鸭 豆腐 披萨 寿司 蛋糕 牛肉 鱼汤 苹果 西瓜 葡萄".split()
ANIMALS_ZH = "猫 狗 马 老虎 熊猫 老鹰 鲸鱼 狐狸 兔子 海豚 狮子 乌龟 企鹅".split()
CITIES_ZH = "北京 上海 广州 深圳 成都 杭州 南京 西安 武汉 重庆 苏州 天津 巴黎 伦敦 东京".split()
SPORTS_ZH = "网球 足球 篮球 游泳 跑步 下棋 滑雪 爬山 跳舞 乒乓球 羽毛球".split()

_EXTENSIONS = "txt md py json csv log html yaml toml sh js rs c cfg ini xml sql".split()
_PROGRAMS = """
ls pwd date whoami df ps env uptime cat echo grep head tail wc sort find make pytest python git pip mkdir touch rm cp mv
""".split()


def listed(text: str) -> list[str]:
    """The phrases of a text that has them on lines and between bars."""
    return text.strip().replace("\n", "|").split("|")


def word(rng: Random) -> str:
    """One English-looking word, real or made up."""
    return rng.choice(ENGLISH) if rng.random() < 0.55 else made_up(rng, rng.choice((1, 2, 2, 3)))


def han(rng: Random) -> str:
    """One Chinese word, real or any two or three characters."""
    if rng.random() < 0.65:
        return rng.choice(CHINESE)
    return "".join(rng.choice(COMMON_HAN) for _ in range(rng.choice((1, 2, 2, 3))))


def phrase(rng: Random, language: str, most: int = 6) -> str:
    """A phrase to be copied: words, now and then numbers, capitals, punctuation, or the other language."""
    if language == "zh" and rng.random() < 0.75:
        text = "".join(han(rng) for _ in range(rng.randint(1, max(1, most * 2 // 3))))
        return text + rng.choice(("", "", "", "！", "。", str(rng.randint(0, 99))))
    parts = [word(rng) for _ in range(rng.randint(1, most))]
    style = rng.random()
    if style < 0.25:
        parts[0] = parts[0].capitalize()
    elif style < 0.35:
        parts = [part.capitalize() for part in parts]
    elif style < 0.40:
        parts = [part.upper() for part in parts]
    if rng.random() < 0.15:
        parts.insert(rng.randint(0, len(parts)), number(rng))
    text = (", " if rng.random() < 0.05 and len(parts) > 1 else " ").join(parts)
    return text + rng.choice(("", "", "", "", "!", ".", "?"))


def number(rng: Random) -> str:
    """A number of one to six digits."""
    return str(rng.randrange(10 ** rng.choice((1, 2, 2, 3, 4, 4, 6))))


def sentence(rng: Random, language: str, most: int = 12) -> str:
    """Text without a meaning, for what the model need not understand."""
    if language == "zh":
        return "".join(han(rng) for _ in range(rng.randint(2, most))) + rng.choice("。？！")
    return " ".join(word(rng) for _ in range(rng.randint(2, most))).capitalize() + rng.choice(".?!")


def stem(rng: Random) -> str:
    """The name of a file or a folder, without its extension."""
    pick = rng.random()
    if pick < 0.55:
        return word(rng)
    if pick < 0.85:
        return word(rng) + rng.choice("_-.") + rng.choice((word(rng), number(rng)))
    if pick < 0.90:
        return word(rng) + number(rng)
    if pick < 0.95:
        return word(rng).capitalize() if rng.random() < 0.7 else word(rng).upper()
    return han(rng)


def folder(rng: Random) -> str:
    """The path of a folder."""
    pick = rng.random()
    if pick < 0.12:
        return rng.choice((".", "/", "/workspace", "src", "docs"))
    depth = rng.choice((1, 1, 1, 2, 2, 3))
    path = "/".join(stem(rng) for _ in range(depth))
    return rng.choice(("", "", "", "/", "./", "/workspace/")) + path


def file(rng: Random) -> str:
    """The path of a file."""
    name = stem(rng) + ("." + rng.choice(_EXTENSIONS) if rng.random() < 0.93 else "")
    pick = rng.random()
    if pick < 0.62:
        return name
    if pick < 0.72:
        return rng.choice(("/workspace/", "./", "/", "/storage/documents/")) + name
    return folder(rng).rstrip("/") + "/" + name


def command(rng: Random) -> str:
    """A shell command."""
    program = rng.choice(_PROGRAMS) if rng.random() < 0.85 else made_up(rng, rng.choice((1, 2)))
    pick = rng.random()
    if program == "echo" or pick < 0.08:
        return "echo " + rng.choice((word(rng), f"{word(rng)} {word(rng)}", number(rng)))
    if pick < 0.30:
        return program
    if pick < 0.42:
        return f"{program} -{rng.choice('ablhrvfn')}{rng.choice(('', 'l', 'a'))}"
    if pick < 0.60:
        return f"{program} {file(rng)}"
    if pick < 0.72:
        return f"{program} -{rng.choice('acnvlrx')} {file(rng)}"
    if pick < 0.80:
        return f"{program} {word(rng)}"
    if pick < 0.86:
        return f"{program} --{word(rng)} {word(rng)}"
    if pick < 0.92:
        return f"{program} {file(rng)} | {rng.choice(('wc -l', 'sort', 'head -n ' + str(rng.randint(1, 20))))}"
    if pick < 0.96:
        return f"cd {folder(rng)} && {program}"
    return f"{program} {word(rng)} > {file(rng)}"
