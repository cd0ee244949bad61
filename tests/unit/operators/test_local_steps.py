import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.local_steps import parts


@given(st.integers(0, 60), st.integers(1, 20))
def test_parts_cover_all_images_once_in_order_and_evenly(images, steps):
    found = parts(images, steps)
    assert [image for part in found for image in range(images)[part]] == list(range(images))
    sizes = {part.stop - part.start for part in found}
    assert len(found) == min(images, steps)
    assert not sizes or (min(sizes) > 0 and max(sizes) - min(sizes) <= 1)


@pytest.mark.parametrize(
    ("images", "steps", "sizes"), [(168, 6, [28] * 6), (54, 2, [27, 27]), (2, 3, [1, 1]), (0, 3, [])]
)
def test_parts_sizes(images, steps, sizes):
    assert [part.stop - part.start for part in parts(images, steps)] == sizes
