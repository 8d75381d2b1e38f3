"""The grammar of replies that may contain tool calls. Pure: no library, no I/O.

It ensures that a call, once begun, is complete and valid. It is written in the Lark dialect of llguidance. A reply is
text up to the opening mark of a call, in any of the forms of `tool_call_formats`. The name of a given tool, arguments
by its schema and the closing mark follow, then text or another call. Marks are `lazy` lexemes: they end as soon as they
match, at any byte boundary.

JSON without a mark (plain or in a fence) is a call as soon as it has named a tool and begun the arguments. JSON with
the name of an unknown tool never reaches this point.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword
from typing import Any

from cfs_server.engine.chat.reply_parser import END_THINK, THINK
from cfs_server.engine.chat.tool_call_formats import Bracketed, Listed, Python, Tagged
from cfs_server.engine.contract.schema_references import arguments_of, resolved

_SPACE = r"[ \t\r\n]{0,16}"
"""White space between the parts of a call; bounded, or a weak model may write nothing else."""
_ARGUMENTS = r'"(arguments|parameters)"'
_KIND = r'("type"\s*:\s*"function"\s*,\s*)?'
_FENCE = r"[ \t]*```(json|tool_calls?)?\s*"
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
_FREE_OF_TAGS = re.compile(r"[^<>\s]{1,128}")
_DEEPEST = 5
"""How far choices among choices are followed."""
_GUIDANCE = {"whitespace_flexible": True, "lenient": True}

Rules = list[str]


def argument_schemas(tools: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the JSON schema of each tool's arguments, whose references lead to its definitions."""
    functions = [tool.get("function", tool) for tool in tools]
    return {str(function.get("name")): arguments_of(function).whole for function in functions}


def call_grammar(schemas: Mapping[str, Mapping[str, Any]], *, thinks: bool = False) -> str:
    """Write the grammar for tools, given by the schemas of their arguments.

    `thinks` when the prompt ends in the middle of the model's thinking, in which there are no calls.
    """
    names = list(schemas)
    heads = [_KIND + rf'"name"\s*:\s*{_regex(json.dumps(name))}\s*,\s*{_ARGUMENTS}\s*:' for name in names]
    any_head = rf'(\[\s*)?\{{\s*{_KIND}"name"\s*:\s*"[^"]*"\s*,\s*{_ARGUMENTS}(.|\n)*'
    rules = [
        "%llguidance {}",
        "ANY: /(.|\\n)*/",
        f"PLAIN_CALL: /\\s*{any_head}/",
        f"FENCED_CALL: /((.|\\n)*\\n)?{_FENCE}{any_head}/",
        f"FENCE: /{_FENCE}/",
        f"THOUGHT: /\\s*{THINK}(.|\\n)*/",
        "TEXT: ANY & ~PLAIN_CALL & ~FENCED_CALL & ~THOUGHT",
        *_body(len(names)),
        "start: opened body | ANY" if thinks else "start: body",
        f'opened[lazy]: ANY "{END_THINK}"',
        f"SPACE: /{_SPACE.replace('{0', '{1')}/",
        f"END: /{_SPACE}\\}}/",
        f"LIST: /{_SPACE}\\[/",
        f"COMMA: /{_SPACE},/",
        f"LIST_END: /{_SPACE}\\]/",
        f"CLOSE: /{_SPACE}{_regex(Tagged.CLOSE)}/",
        f"FENCE_END: /{_SPACE}```/",
        f"object: {_choice(f'object_{number}' for number in range(len(names)))}",
        "list: LIST object (COMMA object)* LIST_END",
        f"python_calls: object (/{_SPACE};/ object)*",
    ]
    for number, schema in enumerate(schemas.values()):
        head = heads[number].replace(r"\s*", _SPACE)
        rules += [
            f"PLAIN_{number}: /\\s*\\{{\\s*{heads[number]}/",
            f"PLAIN_LIST_{number}: /\\s*\\[\\s*\\{{\\s*{heads[number]}/",
            f"arguments_{number}: %json {_json(schema)}",
            f"spaced_{number}: arguments_{number} | SPACE arguments_{number}",
            f"object_{number}: /{_SPACE}\\{{{_SPACE}{head}{_SPACE}/ arguments_{number} END",
        ]
    return "\n".join([*rules, *_tagged(schemas), *_listed(names), *_bracketed(schemas)]) + "\n"


def _body(tools: int) -> Rules:
    """The rest of a reply at some place: text to its end, or text up to a call and the rest after it."""
    forms = {"tagged": Tagged, "listed": Listed, "bracketed": Bracketed, "python": Python}
    rules = [f"{form}[lazy]: TEXT {json.dumps(kind.MARK)}" for form, kind in forms.items()]
    rules.append(f'thought[lazy]: THOUGHT "{END_THINK}"')
    ways = ["TEXT", "THOUGHT", "thought body"]  # the model may begin by thinking, and never end that
    ways += [f"{form} {form}_calls body" for form in ("tagged", "listed", "bracketed")]
    ways.append("python python_calls")  # nothing marks their end but that of the reply
    for number in range(tools):
        rules += [
            f"plain_{number}[lazy]: PLAIN_{number}",
            f"plain_list_{number}[lazy]: PLAIN_LIST_{number}",
            f'fenced_{number}[lazy]: (TEXT "\\n")? FENCE PLAIN_{number}',
        ]
        ways += [
            f"plain_{number} spaced_{number} END body",
            f"plain_list_{number} spaced_{number} END (COMMA object)* LIST_END body",
            f"fenced_{number} spaced_{number} END FENCE_END body",
        ]
    return [*rules, f"body: {_choice(ways)}"]


def _tagged(schemas: Mapping[str, Mapping[str, Any]]) -> Rules:
    """JSON objects one after the other or in a list, or functions with tags around each argument."""
    rules: Rules = []
    functions = []
    for number, (name, schema) in enumerate(schemas.items()):
        properties = _properties(schema)
        if properties is None or not all(map(_FREE_OF_TAGS.fullmatch, [name, *properties])):
            continue
        functions.append(f"function_{number}")
        items = []
        for index, (key, of) in enumerate(properties.items()):
            value = f"function_{number}_{index}"
            begin = f"/{_SPACE}<parameter={_regex(key)}>/"
            if of.get("type") == "string" and "enum" not in of:
                rules += [
                    f"{value.upper()}: /(.|\\n)*<\\/parameter>/ & ~/(.|\\n)*<\\/function>(.|\\n)*/",
                    f"{value}_text[lazy]: {value.upper()}",
                    f"{value}: {begin} {value}_text",
                ]
            else:
                rules.append(f"{value}: {begin} {value}_json /{_SPACE}<\\/parameter>/")
                rules.append(_value_json(f"{value}_json", of, schema))
            items.append((value, key in schema.get("required", ())))
        rules += _ordered(f"function_{number}_arguments", items, "")
        rules.append(
            f"function_{number}: /{_SPACE}<function={_regex(name)}>/ function_{number}_arguments"
            f" /{_SPACE}<\\/function>/"
        )
    ways = ["object+ CLOSE", "list CLOSE"]
    if functions:
        ways.append("function+ CLOSE")
        rules.append(f"function: {_choice(functions)}")
    return [*rules, f"tagged_calls: {_choice(ways)}"]


def _value_json(rule: str, of: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """One argument as JSON, or as bare text if it is one of some words."""
    if of.get("type") == "string":
        words = [json.dumps(word) for word in of["enum"] if isinstance(word, str)]
        return f"{rule}: /{_SPACE}/ ({_choice(words)})"
    definitions = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    return f"{rule}: %json {_json({**of, **definitions})} | SPACE %json {_json({**of, **definitions})}"


def _listed(names: Sequence[str]) -> Rules:
    """A list, an object, or a name and its arguments."""
    named = [
        f"/{_SPACE}{_regex(name)}(\\[CALL_ID\\][A-Za-z0-9]{{1,64}})?(\\[ARGS\\])?{_SPACE}/ arguments_{number}"
        for number, name in enumerate(names)
        if _WORD.fullmatch(name)
    ]
    return [f"listed_calls: {_choice(['list', 'object', *named])}"]


def _bracketed(schemas: Mapping[str, Mapping[str, Any]]) -> Rules:
    """`NAME(key='text')]`: literals of Python. Only names, types, choices and `required` of the schema are used."""
    rules = [
        r"""PY_TEXT: /'([^'\\\x00-\x1f\x7f]|\\['"\\nrt])*'|"([^"\\\x00-\x1f\x7f]|\\['"\\nrt])*"/""",
        r"PY_INTEGER: /-?(0|[1-9][0-9]{0,17})/",
        r"PY_NUMBER: /-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,18})?(e-?[0-9]{1,2})?/",
        r"PY_COMMA: /,[ ]{0,2}/",
        'py_boolean: "True" | "False"',
        'py_list: "[" (py_any (PY_COMMA py_any)*)? "]"',
        'py_mapping: "{" (py_item (PY_COMMA py_item)*)? "}"',
        "py_item: PY_TEXT /: ?/ py_any",
        'py_any: PY_TEXT | PY_NUMBER | py_boolean | "None" | py_list | py_mapping',
    ]
    ways = []
    for number, (name, schema) in enumerate(schemas.items()):
        if not _WORD.fullmatch(name):
            continue
        properties = _properties(schema) or {}
        keywords = all(key.isidentifier() and key.isascii() and not iskeyword(key) for key in properties)
        items = []
        for index, (key, of) in enumerate(properties.items()):
            item = f"bracketed_{number}_{index}"
            begin = json.dumps(f"{key}=") if keywords else f"{json.dumps(repr(key))} /: ?/"
            rules.append(f"{item}: {begin} ({_choice(_literals(of, schema.get('$defs', {})))})")
            items.append((item, key in schema.get("required", ())))
        rules += _ordered(f"bracketed_{number}_arguments", items, "PY_COMMA ")
        inside = f"bracketed_{number}_arguments"
        inside = inside if keywords else f'"{{" {inside} "}}"'
        ways.append(f'{json.dumps(name + "(")} {inside} ")]"')
    return [*rules, f"bracketed_calls: {_choice(ways)}"] if ways else [*rules, 'bracketed_calls: ")]"']


def _literals(schema: Mapping[str, Any], definitions: Mapping[str, Any], depth: int = 0) -> list[str]:
    """Name the literals that a value may be."""
    schema = resolved(schema, definitions)
    if depth > _DEEPEST:
        return ["py_any"]
    if isinstance(choices := schema.get("enum", [schema["const"]] if "const" in schema else None), list) and choices:
        plain = [choice for choice in choices if choice is None or isinstance(choice, str | int | float)]
        return [json.dumps(repr(choice)) for choice in plain] or ["py_any"]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            choices = [one for one in schema[key] if isinstance(one, Mapping)]
            literals = [literal for one in choices for literal in _literals(one, definitions, depth + 1)]
            return list(dict.fromkeys(literals)) or ["py_any"]
    kinds = schema.get("type")
    direct = {
        "string": "PY_TEXT",
        "integer": "PY_INTEGER",
        "number": "PY_NUMBER",
        "boolean": "py_boolean",
        "null": '"None"',
        "array": "py_list",
        "object": "py_mapping",
    }
    return [direct.get(str(kind), "py_any") for kind in (kinds if isinstance(kinds, list) else [kinds])]


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]] | None:
    """Return the allowed arguments in order; None if the schema allows others, too."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or schema.get("additionalProperties") is not False:
        return None
    definitions = schema.get("$defs", {})
    return {str(key): resolved(of, definitions) if isinstance(of, Mapping) else {} for key, of in properties.items()}


def _ordered(name: str, items: Sequence[tuple[str, bool]], separator: str) -> Rules:
    """Write rules for items in their order, of which some are required."""
    rules = [f'{name}_none_{len(items)}: ""', f'{name}_some_{len(items)}: ""']
    for index in reversed(range(len(items))):
        item, required = items[index]
        skipped = "" if required else f" | {name}_{{}}_{index + 1}"
        rules.append(f"{name}_none_{index}: {item} {name}_some_{index + 1}{skipped.format('none')}")
        rules.append(f"{name}_some_{index}: {separator}{item} {name}_some_{index + 1}{skipped.format('some')}")
    return [*rules, f"{name}: {name}_none_0"]


def _choice(ways: Iterable[str]) -> str:
    return " | ".join(ways)


def _json(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": _GUIDANCE})


def _regex(text: str) -> str:
    """Write a text as a regular expression between slashes."""
    return "".join(f"\\{character}" if character in r"\.+*?()|[]{}^$/" else character for character in text)
