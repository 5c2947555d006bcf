"""Lists of rank numbers in sentences."""

from tf_hvd.core.ranks_text import named, ranks_text, runs


def test_ranks_in_a_sentence():
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 1, 7]) == "ranks 0, 1, 7"
    assert ranks_text(range(8), 8) == "ranks 0, 1, 2, 3, 4, 5, 6, 7"
    assert ranks_text(range(9), 8) == "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more"


def test_any_number_of_ranks_in_a_sentence():
    assert named([3]) == "rank 3"
    assert named([1, 0]) == "ranks 0 and 1"
    assert named([0, 1, 2, 4, 7]) == "ranks 0 to 2, 4 and 7"
    assert named(range(512)) == "ranks 0 to 511"


def test_runs_of_numbers():
    assert runs([]) == []
    assert runs([0, 1, 2, 4, 7, 8]) == [[0, 1, 2], [4], [7, 8]]
