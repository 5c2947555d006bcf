"""A function that waits for a module to be imported."""

import sys

from tf_hvd.keras import late


def test_before_and_after(tmp_path, monkeypatch):
    (tmp_path / "tf_hvd_test_late.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    late.when_imported("tf_hvd_test_late", lambda module: seen.append(module.value))
    assert seen == []
    finders = len(sys.meta_path)
    import tf_hvd_test_late

    assert seen == [7]
    assert len(sys.meta_path) == finders - 1
    assert type(tf_hvd_test_late.__spec__.loader).__module__ != late.__name__
    late.when_imported("tf_hvd_test_late", lambda module: seen.append(module.value + 1))
    assert seen == [7, 8]
    monkeypatch.delitem(sys.modules, "tf_hvd_test_late")


def test_module_that_does_not_exist():
    late.when_imported("tf_hvd_test_never", lambda module: None)
    try:
        import tf_hvd_test_never  # noqa: F401
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("it does not exist")
