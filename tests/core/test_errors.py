import re

from braid.core import errors


def tree(kind: type[BaseException], depth: int = 0) -> list[tuple[int, str]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return [(depth, kind.__name__), *(line for each in below for line in tree(each, depth + 1))]


def test_the_header_draws_the_tree_as_it_is() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^    ([│├└─ ]*)([A-Z]\w+)", errors.__doc__, re.MULTILINE)

    assert [(len(lines) // 4, name) for lines, name in drawn] == tree(errors.BraidError)
