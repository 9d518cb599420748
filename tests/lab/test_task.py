"""Tasks: how they are found, and what they may be called."""

from dataclasses import replace

import pytest
from problems import make

from rootscale.lab.task import load_task


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text(
        "from problems import make\nfrom rootscale.lab import Task\n"
        "task = make()\n"
        "def easy(size: int = 1) -> Task:\n    return make()\n"
        "def asks(size: int) -> Task:\n    return make()\n"
        "def other() -> int:\n    return 1\n"
    )
    return tmp_path


def test_a_task_is_found_in_a_file_and_a_function_is_called(file):
    assert load_task(f"{file}/mine.py:task").name == load_task(f"{file}/mine.py:easy").name == "clouds"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("fm", "a task is given as module:name or file.py:name, such as mine.py:task, got 'fm'"),
        ("{file}/mine.py:", "a task is given as module:name or file.py:name"),
        (
            "{file}/mine.py:fm",
            "mine.py has no 'fm'; its tasks are task, easy: give one of these, or your own as FILE.py",
        ),
        ("rootscale.lab.tasks:fm", "has no 'fm'; its tasks are digits, mnist, "),
        ("{file}/empty.py:fm", "has no 'fm', and no task at all: make one there, as task = rootscale.lab.Task"),
        ("{file}/mine.py:other", "other must be a rootscale.lab.Task or a function that makes one, got int"),
        ("{file}/none.py:task", "there is no file .*none.py"),
        ("nothing:task", "cannot import 'nothing': .*; a file is given as nothing.py:task"),
    ],
)
def test_a_task_that_is_not_there_is_explained(where, message, file):
    with pytest.raises(ValueError, match=message):
        load_task(where.format(file=file))


@pytest.mark.parametrize("name", ["..", ".", "", " ", "../up", "a/b", "a\\b", "two\nlines", 3])
def test_a_name_that_leads_out_of_its_folder_is_refused(name):
    with pytest.raises(ValueError, match=r"the name of a task must be a plain name without / or \\, .*got "):
        replace(make(), name=name)


def test_a_name_may_have_spaces_and_points():
    assert replace(make(), name="CIFAR-10, v2.1").name == "CIFAR-10, v2.1"
