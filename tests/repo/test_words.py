"""The word lint, tools/words.py: its patterns, and that no file has more findings than its allowance."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load():
    spec = importlib.util.spec_from_file_location("words", ROOT / "tools/words.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


words = load()
PATTERNS = words.patterns()


@pytest.mark.parametrize("word", [pytest.param(word, id=word.name) for word in PATTERNS])
def test_a_pattern_finds_its_examples(word):
    for text in word.finds:
        assert word.regex.search(text), text
    for text in word.passes:
        assert not word.regex.search(text), text


@pytest.fixture
def found_in(tmp_path):
    def found(text, section, name="file"):
        path = tmp_path / name
        path.write_text(text)
        return [(line, name) for line, name, _ in words.findings(path, section, PATTERNS)]

    return found


def test_docstrings_and_comments_are_read(found_in):
    source = '''"""A module.

Read anew.
"""

# It would wait for
# ever.
limit = 3
"""Told of: what it says is told."""
'''
    assert found_in(source, "code") == [(3, "anew"), (6, "for-ever"), (9, "told"), (9, "told")]
    assert found_in(source, "messages") == []


def test_messages_are_read(found_in):
    source = """raise ValueError(f"{n} rows are"
    f" told of")
LOG.warning("version %s of %s went on", version, name)
warnings.warn("it is read anew", stacklevel=2)
Limit = Annotated[float, typer.Option(help="At most so long a part.")]
event(Late("the store says why"))
"""
    expected = [(1, "told"), (3, "stands"), (4, "anew"), (5, "so-many"), (6, "says")]
    assert found_in(source, "messages") == expected
    assert found_in(source, "code") == []


def test_keys_queries_and_short_texts_are_no_messages(found_in):
    source = """limits = {"read it anew now": 1, f"read {n} rows anew": 2}
rows("SELECT what FROM rows WHERE anew")
name = "read anew"
"""
    assert found_in(source, "messages") == []


def test_code_is_not_read(found_in):
    assert found_in('anew = 1\n"""A ``so_many so long`` span.\n\n>>> f("anew")\n"""\n', "code") == []
    assert found_in("Text `anew`.\n\n```sh\nanew\n```\n\nAgain, anew.\n", "docs") == [(7, "anew")]


def test_names_of_lua_are_read(found_in):
    source = """-- it held some rows
local stands = redis.call('HGET', key, 'found')
local existing = told_lost(key)  -- told
"""
    assert found_in(source, "names", "file.lua") == [(2, "names"), (3, "names")]


def test_names_that_python_binds_are_read(found_in):
    source = """def read(at: ReadAt, held, wanted: str):
    found = [at for at in held]
    return found.at
"""
    assert [line for line, _ in found_in(source, "bound", "file.py")] == [1, 1, 2, 2]


def test_the_allowance_only_shrinks(tmp_path, monkeypatch):
    monkeypatch.setattr(words, "ALLOWED", tmp_path / "allowed.toml")
    now = {"docs": {"a.md": 2, "b.md": 1}, "code": {}, "messages": {}, "names": {}, "bound": {}}
    monkeypatch.setattr(words, "count", lambda: now)
    assert words.update() == []
    assert words.allowed() == now
    monkeypatch.setattr(words, "count", lambda: now | {"docs": {"a.md": 3, "c.md": 1}})
    assert words.update() == ["a.md", "c.md"]
    assert words.allowed() == {"docs": {"a.md": 2}, "code": {}, "messages": {}, "names": {}, "bound": {}}


def test_each_file_has_its_allowance():
    counted, allowed = words.count(), words.allowed()
    for section in words.SECTIONS:
        now, limits = counted[section], allowed[section]
        more = [name for name, n in now.items() if n > limits.get(name, 0)]
        assert not more, f"python tools/words.py {' '.join(more)}"
        fewer = [name for name, limit in limits.items() if now.get(name, 0) < limit]
        assert not fewer, "python tools/words.py --update"
