"""The documentation site: `make docs` builds it into site/, strictly. No page loads anything from elsewhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for generators/

project = "arms"
html_title = "arms"
html_short_title = "arms"
copyright = "The arms authors"  # noqa: A001
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generators.extension",
]
exclude_patterns = ["generators"]
root_doc = "index"

myst_enable_extensions = ["alert", "dollarmath"]
myst_heading_anchors = 4  # the same anchors as on a code host
myst_links_external_new_tab = False

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 600  # of a cell; seconds on an idle machine
nb_merge_streams = True

autodoc_class_signature = "mixed"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the descriptions of arguments say what they are
autoclass_content = "both"
napoleon_numpy_docstring = False
default_role = "code"  # docstrings have `names` in single backticks
python_maximum_signature_line_length = 88
add_module_names = True

html_math_renderer = "mathml"
nitpicky = True
nitpick_ignore = [
    ("py:exc", "SweepError"),
    ("py:exc", "DivergedError"),
    ("py:exc", "OutOfTimeError"),
]

html_theme = "furo"
html_favicon = "assets/favicon.svg"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#2f4b7c", "color-brand-content": "#2f5d9e"},
    "dark_css_variables": {"color-brand-primary": "#9db7e0", "color-brand-content": "#8fb3ea"},
}
copybutton_exclude = ".linenos, .gp, .go"
