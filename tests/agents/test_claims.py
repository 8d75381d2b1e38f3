"""Which files an answer claims to have written: wordings of agents and people found in public transcripts, and their
opposites. What is not said in so many words is not claimed."""

import pytest

from cfs_agents.loop.claims import claimed_files, corrects, named_files

CLAIMED = [
    ("I have written out.txt", ["out.txt"]),
    ("I've created the file `sake.js` that prints out three popular sake brands:\n- Dassai\n- Kubota", ["sake.js"]),
    ("Done. Wrote a small parser and generated `orders.json` with 4 orders: a, b", ["orders.json"]),
    ("I've created the file `config.json` with your settings.", ["config.json"]),
    ("In this case, I've created the file `test.txt`, but haven't added it yet.", ["test.txt"]),
    (
        "I've created the file `src/services/test_java_analyzer.py` and implemented the fixtures.",
        ["src/services/test_java_analyzer.py"],
    ),
    ("I've created the file `PROOF.md` with the content:\ncodex ran inside a remount workspace.", ["PROOF.md"]),
    (
        'Perfect! I\'ve created the file `hello.txt` with the content "Hello, World!". It has been saved.',
        ["hello.txt"],
    ),
    (
        "I've updated `docker-compose.yml` to include proper hostname configuration. Now you need to:\n",
        ["docker-compose.yml"],
    ),
    ("I've updated `mobile/app.json` to disable updates. This is fine for local development.", ["mobile/app.json"]),
    ("**I've updated `app/globals.css` with their precise CSS system.**", ["app/globals.css"]),
    ("I've updated `server.py` to be simpler and more robust:\n```bash\nclaude mcp remove x.py\n```", ["server.py"]),
    ("I've added the DMG decision to [PLAN.md](PLAN.md) and pushed it.", ["PLAN.md"]),
    (
        "I've added the imports, `Mathlib.Data.List.Range` and `Mathlib.PadicVal.Basic`, to `CheckFact.lean`.",
        ["CheckFact.lean"],
    ),
    ("Report has been saved to analysis_report.md", ["analysis_report.md"]),
    (
        "计划已保存到 `docs/superpowers/plans/2026-07-18-week1.md`。\n\n**两个执行选项：**",
        ["docs/superpowers/plans/2026-07-18-week1.md"],
    ),
    ("我已经创建了 login.py 文件", ["login.py"]),
    (
        "我已经创建了一个完整的项目记录文件 `PROJECT_LOG.md`，详细记录了我们整个重构过程中的所有内容，包括：",
        ["PROJECT_LOG.md"],
    ),
    ("friend.json 文件已生成。", ["friend.json"]),
    ("PDF 文件已生成：out.pdf", ["out.pdf"]),
    ("已完成,raw_agent.py 的内容已被清空", ["raw_agent.py"]),
    ("已写入文件 raw_agent.py", ["raw_agent.py"]),
    ("The agents wrote the files a.txt and b.txt.", ["a.txt", "b.txt"]),
    ("Created files:\n\n- `a.md`\n- notes/b.md: reads config.toml\n", ["a.md", "notes/b.md"]),
    ("I read data.csv and wrote the sum to out.txt.", ["out.txt"]),
    ("I wrote the sum of the numbers in data.csv to out.txt.", ["out.txt"]),
    ("out.txt was created.", ["out.txt"]),
    ("`notes/a.md` has been updated successfully.", ["notes/a.md"]),
    ("The result is saved in 'result.json'.", ["result.json"]),
    ("I saved it as /workspace/report.html", ["/workspace/report.html"]),
    ("结果已保存在“结果.txt”中。", ["结果.txt"]),
    ("我把苹果写入了list.txt。", ["list.txt"]),
    ("已将结果写入 /workspace/out.csv，并更新了 README.md。", ["/workspace/out.csv", "README.md"]),
    ("a.txt and b.txt have been created.", ["a.txt", "b.txt"]),
    ("I've added tests (tests/test_x.py) and fixed main.py.", ["tests/test_x.py", "main.py"]),
    ("Saved to out.txt", ["out.txt"]),
    ("Successfully created `Makefile`.", ["Makefile"]),
]

NOT_CLAIMED = [
    "I read out.txt.",
    "out.txt says: hello",
    "There is no file notes.md.",
    "I could not write out.txt: permission denied.",
    "You can create out.txt with `touch out.txt`.",
    "Should I write out.txt?",
    "I will write out.txt next.",
    "To create out.txt, run:\n```\necho hi > out.txt\n```",
    "I did not create out.txt.",
    "out.txt already existed, so I left it as it is.",
    "The function is described in spec.md.",
    "I made a Node.js server.",
    "I've updated `cli-config.yaml.example` if I added/changed config keys",
    "I built it with version 2.0 from example.com/index.html",
    "> I created out.txt\n\nThat is what the log says.",
    'The log says "I created out.txt".',
    "out.txt 不存在。",
    "没有创建 out.txt。",
    "我读取了 out.txt，其中写着：hello",
    "请创建 out.txt。",
    "要不要我创建 out.txt？",
    "I wrote a summary of app.log.",
    "The script creates out.txt when it runs.",
    "I created tmp.txt and then deleted it.",
    "See https://example.com/a/b.txt, which I wrote.",
    "I looked at main.py, which imports utils.py.",
    "I have written nothing to out.txt.",
    "Would create out.txt",
    "The answer is 42.",
    "In a previous session I created out.txt.",
    "notes.txt says: hello",
    "I found blue in a.md.",
    "a.md is in docs.",
    "I moved a.txt to b.txt.",
    "The file a.txt was written by you.",
    "Failed to save out.txt",
    "Nothing was written to out.txt",
    "I was unable to find data.csv, so nothing was changed.",
]

ORDERED = [
    ("Write hello to notes.txt, then read it back", "notes.txt says: hello", ["notes.txt"]),
    ("把苹果写入list.txt，然后读回来", "list.txt的内容是苹果", ["list.txt"]),
    ("Read data.csv and tell me the sum", "data.csv: the sum is 5", []),
    ("Write hello to notes.txt unless it exists", "notes.txt already exists; I left it alone.", []),
    ("Update main.py so that it reads config.toml.", "main.py reads config.toml.", ["main.py"]),
    ("How is out.txt written?", "out.txt is a log of the build.", []),
    ("Explain how to write to out.txt", "out.txt can be written with echo.", []),
    (
        'Make a.txt with "hello" and b.txt with "world" in parallel.',
        "Both a.txt and b.txt are there.",
        ["a.txt", "b.txt"],
    ),
]


@pytest.mark.parametrize(("answer", "names"), CLAIMED)
def test_what_is_said_to_be_written_is_claimed(answer: str, names: list[str]) -> None:
    assert list(claimed_files(answer)) == names


@pytest.mark.parametrize("answer", NOT_CLAIMED)
def test_all_else_is_not(answer: str) -> None:
    assert claimed_files(answer) == ()


@pytest.mark.parametrize(("task", "answer", "names"), ORDERED)
def test_what_the_task_orders_is_claimed_by_whoever_speaks_of_it(task: str, answer: str, names: list[str]) -> None:
    assert list(claimed_files(answer, task)) == names


def test_an_answer_takes_back_what_was_said() -> None:
    """By a denial, of the file if it names files; not by silence."""
    first = "I have written out.txt."
    assert named_files("Done.", "", first) == ("out.txt",)
    assert named_files(first, "", first) == ("out.txt",)
    assert named_files("I did not write other.txt.", "", first) == ("out.txt",)
    for taken_back in ("I could not write out.txt.", "You are right, nothing was written.", "out.txt 没有写入。"):
        assert corrects(taken_back, "out.txt")
        assert named_files(taken_back, "", first) == ()


@pytest.mark.parametrize(
    "piece", ["a/", "a.", "`", "a.txt ", "(", "wrote ", "\n- ", "**", '"', "“", "+a", "[a](", "```\n"]
)
def test_no_text_takes_long(piece: str) -> None:
    """Whatever it is made of: this test comes to its end, and what stands before is still found."""
    assert claimed_files("I wrote out.txt.\n" + piece * (1_000_000 // len(piece)))[:1] == ("out.txt",)
