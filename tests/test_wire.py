"""The .npy bytes are NumPy's own, and a stranger's bytes can do nothing but be refused."""

import io
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.testing import assert_array_equal

from twinflower.errors import ReplyError
from twinflower.wire import checked, dtype_name, expect_arrays, from_npy, to_npy

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "g", ">i2", ">u8", ">f8"]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4, 5)]


def saved(array):
    """What np.save writes."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy(descr, shape, body=b"", fortran_order=False, size=118):
    """A file whose header of this size claims this type and shape."""
    header = f"{{'descr': {descr!r}, 'fortran_order': {fortran_order!r}, 'shape': {shape!r}, }}"
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + header.ljust(size - 1).encode() + b"\n" + body


def assert_same(one, other):
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert_array_equal(one, other)


# --- honest bytes ---


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes_are_those_of_np_save_and_come_back(dtype, shape):
    array = np.random.default_rng(1).uniform(0, 99, shape).astype(dtype)
    assert to_npy(array) == saved(array)
    assert_same(from_npy(to_npy(array)), array)


@given(arrays(np.float64, array_shapes(max_dims=3, max_side=4)))
def test_every_number_comes_back(array):
    assert from_npy(to_npy(array)).tobytes() == array.tobytes()  # NaN's bits and -0 too


@pytest.mark.parametrize(
    "view",
    [np.transpose, np.asfortranarray, lambda a: a[::2], lambda a: a[..., ::-1], lambda a: a[1, 2, 3]],
    ids=["transposed", "Fortran", "strided", "reversed", "scalar"],
)
def test_any_layout_is_written_and_read(view):
    array = view(np.random.default_rng(2).normal(size=(4, 5, 6)))
    assert_same(from_npy(to_npy(array)), np.asarray(array))
    assert_same(from_npy(saved(array)), np.asarray(array))  # in Fortran order for the first two


def test_what_is_read_is_a_view_that_cannot_be_written():
    data = to_npy(np.arange(3.0))
    array = from_npy(data)
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtypes_name_is_its_text(dtype):
    assert dtype_name(np.dtype(dtype)) == str(np.dtype(dtype))


# --- a stranger's bytes ---


def test_every_truncation_and_every_addition_is_refused():
    for array in (np.arange(3.0), np.ones((2, 3), np.uint8), np.array(5)):
        data = to_npy(array)
        for wrong in [data[:size] for size in range(len(data))] + [data + bytes(n) for n in (1, 8, 64)]:
            with pytest.raises(ReplyError):
                from_npy(wrong)


@pytest.mark.filterwarnings("ignore")  # of the parser, about strange texts
def test_corrupted_bytes_are_refused_or_plain_numbers_of_the_right_size():
    rng, letters = np.random.default_rng(3), np.frombuffer(b"0123456789<>|?fiubOVU,()-' \0\xff", np.uint8)
    read = 0
    for _ in range(4000):
        sound = to_npy(np.ones(rng.integers(1, 7, size=rng.integers(3)), rng.choice(DTYPES)))
        data = np.frombuffer(sound, np.uint8).copy()
        places = rng.integers(len(data), size=rng.integers(1, 4))
        data[places] = rng.choice(letters, len(places))
        try:
            array = from_npy(data.tobytes())
        except ReplyError:
            continue
        read += 1
        assert array.dtype.kind in "biuf" and array.nbytes < len(sound)
    assert 100 < read < 3900  # both happened


@pytest.mark.parametrize(
    "descr", ["|O", "<c8", "<M8[s]", "|V8", "|S8", "<U2", "(1,)f8", "f4,i4", "x", 8, None]
)
def test_anything_but_numbers_is_refused(descr):
    with pytest.raises(ReplyError):
        from_npy(npy(descr, (1,), bytes(8)))


@pytest.mark.parametrize(
    "shape",
    [(2,), (0,), (1, 2), (-1,), (-1, -1), (2**20,), (2**62,), (2**64 + 1,), (10**30,), (2**32, 2**32)]
    + [(1.0,), ("1",), (None,), ((1,),), 1, None, "1", [1]],
    ids=str,
)
def test_a_shape_that_the_bytes_do_not_have_is_refused_before_memory_is_taken(shape):
    data = npy("<f8", shape, bytes(8))
    tracemalloc.start()
    with pytest.raises(ReplyError):
        from_npy(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


@pytest.mark.parametrize("fortran_order", [0, 1, None, "False"])
def test_an_order_that_is_no_truth_value_is_refused(fortran_order):
    with pytest.raises(ReplyError, match="header cannot be read"):
        from_npy(npy("<f8", (1,), bytes(8), fortran_order))


def test_other_formats_are_refused():
    archive, pickled, newer = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(archive, x=np.ones(2))
    np.save(pickled, np.array([{}]), allow_pickle=True)
    np.lib.format.write_array(newer, np.ones(2), version=(2, 0))
    for data in (archive.getvalue(), pickled.getvalue(), newer.getvalue(), b"", b"\x93NUMPY", b"[1.0, 2.0]"):
        with pytest.raises(ReplyError):
            from_npy(data)


def test_a_long_header_is_not_even_parsed():
    one = np.array(1.0).tobytes()
    assert from_npy(npy("<f8", (), one)) == from_npy(npy("<f8", (), one, size=1024)) == 1
    for size in (1025, 60_000):
        with pytest.raises(ReplyError, match=r"not in the \.npy format"):
            from_npy(npy("<f8", (), one, size=size))


@given(st.binary(max_size=200))
def test_noise_is_refused(noise):
    for data in (noise, b"\x93NUMPY\x01\x00" + noise, b"\x93NUMPY\x01\x00\x76\x00" + noise):
        with pytest.raises(ReplyError):
            from_npy(data)


# --- what an array must be ---


def test_a_checked_array_is_the_array_itself():
    for array in (np.arange(3.0), np.arange(3), np.zeros((2, 0), np.uint8)):
        assert checked("x", array, array.shape, array.dtype) is array


@pytest.mark.parametrize(
    "array, text",
    [
        (np.ones(3, np.float32), "x0 must be float64, got float32"),
        (np.ones(3, int), "x0 must be float64, got int64"),
        (np.array([None] * 3), "x0 must be float64, got object"),
        (np.ones(4), r"x0 must have shape \(3,\), got \(4,\)"),
        (np.ones((3, 1)), r"x0 must have shape \(3,\), got \(3, 1\)"),
        (np.array(1.0), r"x0 must have shape \(3,\), got \(\)"),
        (np.array([1, math.nan, 1]), "x0 must be finite; got NaN or infinity"),
        (np.array([1, -math.inf, 1]), "x0 must be finite"),
    ],
)
def test_a_wrong_array_is_named_and_refused(array, text):
    with pytest.raises(ReplyError, match=text):
        checked("x0", array, (3,))


def test_arrays_are_counted():
    expect_arrays([np.ones(1)] * 2, 2)
    for count in (0, 1, 3):
        with pytest.raises(ReplyError, match=f"expected 2 arrays, got {count}"):
            expect_arrays([np.ones(1)] * count, 2)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((True, 3), 24), ((0, 10**30), 0), ((0, 2**62), 0), ((2**63, 0), 0), ((1,) * 65, 8)],
    ids=str,
)
def test_a_shape_that_numpy_cannot_have_is_refused(shape, size):
    with pytest.raises(ReplyError):
        from_npy(npy("<f8", shape, bytes(size)))
