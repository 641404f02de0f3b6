"""Models of strings: as the exporters of scikit-learn make them, and with ONNX's own operators."""

from typing import Any

import numpy as np
import onnx

from tests.models.graphs import parsed


def of_strings(text: str, **constants: Any) -> onnx.ModelProto:
    """A model in ONNX's text format, of an operator set that has operators of strings."""
    return parsed(text, constants, opset=20)


def greeting() -> onnx.ModelProto:
    """``y`` is ``x`` between two constants: strings in and out, any rows."""
    return of_strings(
        """(string[batch, 2] x) => (string[batch, 2] y)
        { a = StringConcat(hello, x)  y = StringConcat(a, mark) }""",
        hello=np.array(["hello "], object),
        mark=np.array(["!"], object),
    )


def labels(rows: str = "n") -> onnx.ModelProto:
    """Two columns, text and number, to a label: what a pipeline of scikit-learn looks like.

    skl2onnx gives rows no name ("?").
    """
    return of_strings(
        f"""(string[{rows}, 1] colour, float[{rows}, 1] size)
        => (string[{rows}] label, float[{rows}, 3] scores) {{
          hot = ai.onnx.ml.OneHotEncoder<cats_strings=["red", "green", "blue"], zeros=0>(colour)
          columns = Reshape(hot, flat)  features = Concat<axis=1>(columns, size)
          label, scores = ai.onnx.ml.LinearClassifier<
            classlabels_strings=["apple", "lime", "plum"],
            coefficients=[2.0, 0.0, 0.0, 0.1, 0.0, 2.0, 0.0, 0.1, 0.0, 0.0, 2.0, -0.1],
            intercepts=[0.0, 0.1, 0.2], multi_class=1, post_transform="SOFTMAX">(features) }}""",
        flat=[-1, 3],
    )


def word_counts() -> onnx.ModelProto:
    return of_strings(
        """(string[n] text) => (float[n, 3] counts) {
          lower = StringNormalizer<case_change_action="LOWER", locale="C.UTF-8">(text)
          tokens = com.microsoft.Tokenizer<
            mark=0, mincharnum=1, pad_value="#", separators=[" "]>(lower)
          counts = TfIdfVectorizer<
            mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0],
            ngram_indexes=[0, 1, 2], pool_strings=["fox", "dog", "lazy"]>(tokens) }"""
    )


def numbers_to_names() -> onnx.ModelProto:
    """Strings come out only, and are far longer than what goes in."""
    return of_strings(
        f"""(int64[n, 3] x) => (string[n, 3] y) {{
          y = ai.onnx.ml.LabelEncoder<keys_int64s=[0, 1, 2], default_string="many",
            values_strings=["zero", "{"one" * 2000}", "two — zwei"]>(x) }}"""
    )


def turned() -> onnx.ModelProto:
    """Rows of strings become columns, and numbers go beside them."""
    return of_strings(
        """(string[rows, 2] x, float[rows, 3] n) => (string[2, rows] y, float[3, rows] m)
        { y = Transpose<perm=[1, 0]>(x)  m = Transpose<perm=[1, 0]>(n) }"""
    )


def echoes() -> onnx.ModelProto:
    """64 copies of each string."""
    return of_strings(
        "(string[n, 1] x) => (string[n, 64] y) { y = StringConcat(x, nothing) }",
        nothing=np.full((1, 64), "", object),
    )
