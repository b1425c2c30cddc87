"""Configuration of Sphinx for the documentation site, which `make docs` builds (tools/docs.py)."""

from importlib.metadata import version as installed
from typing import Any

from sphinx.application import Sphinx

project = "kafkadur"
version = release = installed("kafkadur")
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]

# Pages are Markdown. Docstrings are plain text with `code` in backticks.
default_role = "literal"
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # examples with `...` in JSON and shell

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

html_theme = "furo"
html_title = f"kafkadur {version}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = "$ "

#: Classes whose objects come from a method: their constructors are private.
MADE_BY_METHODS = {
    "kafkadur.Batch", "kafkadur.Connection", "kafkadur.Delivery", "kafkadur.Distributed", "kafkadur.Producer",
    "kafkadur.Session", "kafkadur.Subscription", "kafkadur.jms.Connection", "kafkadur.jms.Message",
    "kafkadur.jms.MessageConsumer", "kafkadur.jms.MessageProducer", "kafkadur.jms.Session",
    "kafkadur.sync.Connection", "kafkadur.sync.Delivery", "kafkadur.sync.Distributed",
    "kafkadur.sync.Session", "kafkadur.sync.Subscription", "kafkadur_spark.Claim", "kafkadur_spark.Claimer",
    "kafkadur_spark.Holder", "kafkadur_spark.Reading",
}  # fmt: skip


def without_constructor(_app: Sphinx, _what: str, name: str, *_: object) -> tuple[str, str] | None:
    """Hide the parameters of a private constructor."""
    return ("", "") if name in MADE_BY_METHODS else None


def without_parts(_app: Sphinx, _what: str, _name: str, value: object, *_: object) -> bool | None:
    """Leave out what other modules of kafkadur call: its docstring begins with "Part of"."""
    return (getattr(value, "__doc__", None) or "").startswith("Part of ") or None


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the functions of this file with Sphinx."""
    app.connect("autodoc-process-signature", without_constructor)
    app.connect("autodoc-skip-member", without_parts)
    return {"parallel_read_safe": True}
