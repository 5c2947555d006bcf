"""Shows classes that depend on the installed Keras under their public names on the API page.

For type checkers, such a class has a private first base class. It has the docstring and the
arguments, so that readers of the source find them there.
"""

import copy

import griffe

_MODULES = ("elastic.fit", "keras.callbacks", "keras.learning_rate", "keras.sync_batch_norm")


class MadeClasses(griffe.Extension):
    """Replaces the class with its documented base."""

    def on_package(self, *, pkg, **_):
        """Run once, when the whole package has been read."""
        for name in _MODULES:
            module = pkg[name]
            for public, shown in list(module.classes.items()):
                written = str(shown.bases[0]) if shown.bases and not shown.docstring else ""
                place = f"keras.{written}" if "." in written else f"{name}.{written}"
                if written.rpartition(".")[2].startswith("_") or "." in written:
                    found = copy.copy(pkg[place])
                    found.name = public
                    module.set_member(public, found)
