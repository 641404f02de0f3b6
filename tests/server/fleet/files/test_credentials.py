from pathlib import Path

import pytest

from braid.core.errors import StartupError
from braid.server.fleet.files.credentials import read_credentials
from braid.server.fleet.files.place import open_place


def test_a_file_has_a_variable_a_line(tmp_path: Path) -> None:
    file = tmp_path / "s3.env"
    file.write_text(
        "# keys\n\nAWS_ACCESS_KEY_ID=braid\n  export AWS_SECRET_ACCESS_KEY = 'a=b#c' \n"
        'AZURE_STORAGE_ACCOUNT_KEY="k"\n'
    )

    assert read_credentials(file) == {
        "AWS_ACCESS_KEY_ID": "braid",
        "AWS_SECRET_ACCESS_KEY": "a=b#c",
        "AZURE_STORAGE_ACCOUNT_KEY": "k",
    }


WRONG_LINE = r"s3\.env, line \d: give AWS_ACCESS_KEY_ID="


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sesame", WRONG_LINE),
        ("AWS_ACCESS_KEY_ID=a\nsesame=open", WRONG_LINE),
        ("PATH=sesame", WRONG_LINE),
        ("AWS_SECRET_KEY_OF_MINE=sesame\n", "cannot be used"),
    ],
)
def test_what_is_wrong_is_named_in_one_line_and_not_repeated(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "s3.env"
    file.write_text(content)

    with pytest.raises(StartupError, match=message) as caught:
        open_place("s3://bucket/x", file)

    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"CREDENTIALS_FILE=.* cannot be read: No such file"):
        open_place("s3://bucket/x", tmp_path / "none")
