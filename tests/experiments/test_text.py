import gzip
import lzma

import numpy as np
import pytest
import text
import torch
from text import corpus, from_text, tokenise

PARTS = {"train": "a b <unk> a\nc a\n", "valid": "b b\n", "test": "c d\n"}


def write(folder, pattern, opener=open, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for part, content in PARTS.items():
        with opener(folder / (pattern.format(part) + suffix), "wb") as file:
            file.write(content.encode())


@pytest.mark.parametrize(
    ("place", "pattern", "opener", "suffix", "name"),
    [
        ("wikitext-103", "wiki.{}.tokens", open, "", "wikitext-103"),
        ("wikitext-103-raw", "wiki.{}.raw", open, "", "wikitext-103"),
        ("wikitext-2", "wiki.{}.tokens", gzip.open, ".gz", "wikitext-2"),
        ("wikitext-2", "{}.txt", lzma.open, ".xz", "wikitext-2"),
    ],
)
def test_wikitext_is_read_in_its_published_layouts(tmp_path, place, pattern, opener, suffix, name):
    write(tmp_path / place, pattern, opener, suffix)
    for folder in (tmp_path, tmp_path / place):
        found = corpus(folder)
        assert found.name == name
        tokens = tokenise(found, "word", cache=tmp_path / "cache")
        words = tokens.vocabulary.words
        for part, content in PARTS.items():
            expected = content.replace("\n", " <eos> ").split()
            assert [words[i] for i in tokens.parts[part]] == expected
        assert set(words) == {"a", "b", "c", "d", "<unk>", "<eos>"}


def test_other_folders_of_text_keep_their_parts_and_their_name(tmp_path):
    write(tmp_path / "mine", "{}.txt")
    (tmp_path / "mine" / "test.txt").unlink()
    found = corpus(tmp_path / "mine")
    assert (found.name, set(found.parts), found.kind) == ("mine", {"train", "valid"}, "bpe")
    write(tmp_path / "wt", "wiki.{}.tokens")
    found = corpus(tmp_path / "wt")
    assert (found.name, set(found.parts)) == ("wt", {"train", "valid", "test"})
    (tmp_path / "many" / "deep").mkdir(parents=True)
    (tmp_path / "many" / "b.txt").write_text("b\n" * 50)
    (tmp_path / "many" / "deep" / "a.txt").write_text("a\n" * 50)
    tokens = tokenise(corpus(tmp_path / "many"), "word", cache=tmp_path / "cache")
    assert tokens.vocabulary.words[int(tokens.parts["train"][0])] == "b"
    assert {part: len(numbers) for part, numbers in tokens.parts.items()} == {"train": 180, "valid": 10, "test": 10}


def test_words_are_ordered_by_how_often_they_come_and_rare_ones_are_unknown():
    tokens = from_text("b a a\nb a c\n", size=4)
    assert tokens.vocabulary.words == ("a", "b", "<eos>", "<unk>")
    assert tokens.parts["train"].tolist() == [1, 0, 0, 2, 1, 0, 3, 2]


def test_enwik8_is_cut_into_bytes_and_90_5_5(tmp_path):
    content = bytes(range(256)) * 10
    with lzma.open(tmp_path / "enwik8.xz", "wb") as file:
        file.write(content)
    tokens = tokenise(corpus(tmp_path), cache=tmp_path / "cache")
    assert {part: len(numbers) for part, numbers in tokens.parts.items()} == {"train": 2304, "valid": 128, "test": 128}
    assert bytes(tokens.joined().tolist()) == content
    assert tokens.parts["train"].dtype == torch.uint8
    assert (tokens.vocabulary.size, tokens.vocabulary.total, tokens.vocabulary.special("mask")) == (256, 260, 259)


def test_a_bpe_gives_the_text_back_and_is_read_again_from_its_file(tmp_path):
    pytest.importorskip("tokenizers")
    lines = "the cat sat on the mat, über\n" * 40
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "one.txt").write_text(lines, encoding="utf-8")
    first = tokenise(corpus(tmp_path / "data"), "bpe", 300, tmp_path / "cache")
    assert first.vocabulary.size <= 300
    assert len(first) < len(lines) / 2, "frequent pieces should be single tokens"
    assert first.vocabulary._bpe.decode(first.joined().tolist()) == lines
    again = tokenise(corpus(tmp_path / "data"), "bpe", 300, tmp_path / "cache")
    assert again.vocabulary.encode("the mat") == first.vocabulary.encode("the mat")
    assert torch.equal(again.joined(), first.joined())


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """The folder of the user's caches, which is not that of the data."""
    monkeypatch.delenv("ROOTSCALE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "rootscale"


def test_text_is_cut_up_once_and_other_text_makes_other_files(tmp_path, monkeypatch, own_cache):
    write(tmp_path / "data" / "wikitext-2", "{}.txt")
    first = tokenise(corpus(tmp_path / "data"))
    (made,) = own_cache.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(text.Vocabulary, "of", lambda *args: pytest.fail("it should be read, not made again"))
        assert torch.equal(tokenise(corpus(tmp_path / "data")).joined(), first.joined())
    (tmp_path / "data" / "wikitext-2" / "train.txt").write_text("other words\n")
    other = tokenise(corpus(tmp_path / "data"))
    assert other.parts["train"].shape == (3,)
    assert {path.name for path in own_cache.iterdir()} > {made.name}


def test_another_folder_of_caches_may_be_named(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOTSCALE_CACHE", str(tmp_path / "elsewhere"))
    write(tmp_path / "wikitext-2", "{}.txt")
    tokenise(corpus(tmp_path))
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_nothing_is_written_into_the_folder_of_the_data_which_may_be_read_only(tmp_path, own_cache):
    data = tmp_path / "data"
    write(data / "wikitext-2", "{}.txt")
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    data.joinpath("wikitext-2").chmod(0o555)
    data.chmod(0o555)
    try:
        tokens = tokenise(corpus(data))
    finally:
        data.chmod(0o755)
        data.joinpath("wikitext-2").chmod(0o755)
    assert len(tokens) == 14
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before
    assert list(own_cache.iterdir())


def test_a_folder_of_caches_that_cannot_be_written_is_said_and_the_text_is_read(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ROOTSCALE_CACHE", str(tmp_path / "file"))
    write(tmp_path / "wikitext-2", "{}.txt")
    assert len(tokenise(corpus(tmp_path))) == 14
    assert "are not stored" in caplog.text
    assert "ROOTSCALE_CACHE" in caplog.text


def test_an_interrupted_reading_leaves_nothing_that_looks_finished(tmp_path):
    write(tmp_path / "wikitext-2", "{}.txt")
    with lzma.open(tmp_path / "wikitext-2" / "test.txt.xz", "wb") as file:
        file.write(b"x y z " * 1000)
    packed = (tmp_path / "wikitext-2" / "test.txt.xz").read_bytes()
    (tmp_path / "wikitext-2" / "test.txt").unlink()
    (tmp_path / "wikitext-2" / "test.txt.xz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ValueError, match=r"test\.txt\.xz cannot be read or is truncated"):
        tokenise(corpus(tmp_path), cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_generated_text_is_the_same_every_time_and_can_be_foretold():
    tokens = from_text(text.chain(20, 4000))
    assert text.chain(20, 4000) == text.chain(20, 4000)
    assert text.chain(20, 4000) != text.chain(20, 4000, seed=1)
    numbers = tokens.parts["train"].numpy()
    pairs = np.zeros((tokens.vocabulary.size,) * 2)
    np.add.at(pairs, (numbers[:-1], numbers[1:]), 1)
    assert pairs.max(1).sum() / pairs.sum() > 0.6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda place: corpus(place / "nowhere"), "there is no folder"),
        (lambda place: corpus(place), "text is not in .*; looked for wiki.train.tokens"),
        (lambda place: corpus(place, "enwik8"), "enwik8 is not in .*; looked for enwik8"),
        (
            lambda place: corpus(place, "wikitext-1"),
            "must be one of wikitext-103, wikitext-2, enwik8, got 'wikitext-1'",
        ),
        (lambda place: from_text("a", "letters"), "must be one of word, byte, bpe, got 'letters'"),
        (lambda place: from_text("a", "byte", size=10), "for word .* and bpe .*, got 10 for byte"),
    ],
)
def test_mistakes_say_what_would_work(tmp_path, call, message):
    with pytest.raises(ValueError, match=message):
        call(tmp_path)


def test_without_a_folder_the_variable_is_named(monkeypatch):
    monkeypatch.delenv("ROOTSCALE_DATA", raising=False)
    with pytest.raises(ValueError, match="ROOTSCALE_DATA"):
        corpus()
