"""For the site's API page: the callbacks under the names that users import.

`tf_hvd.keras.callbacks` makes its classes for the Keras at hand when they are asked for, so
a reader of the source alone finds neither name. The table that they are made from has both.
"""

import ast
import copy

import griffe


def _table(module):
    """Public name -> name of the class with the docstring, of `KerasVariants(__name__, {...})`."""
    call = ast.parse(str(module["_VARIANTS"].value), mode="eval").body
    names = call.args[1]
    return {
        key.value: ast.unparse(value.elts[0])
        for key, value in zip(names.keys, names.values, strict=True)
    }


class CallbackNames(griffe.Extension):
    """Adds the classes by the names of the table."""

    def on_package(self, *, pkg, **_):
        """Called once, when the whole package has been read."""
        module = pkg["keras.callbacks"]
        for public, written in _table(module).items():
            place = f"keras.{written}" if "." in written else f"keras.callbacks.{written}"
            found = copy.copy(pkg[place])
            found.name = public
            module.set_member(public, found)
