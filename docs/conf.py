"""Settings of the documentation's site: ``.ci/site`` builds it. Nothing in its pages is fetched from other hosts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for site_pages.py

import polyloom

project, author = "Polyloom", "The Polyloom authors"
project_copyright = f"{author}. Apache-2.0"
version = release = polyloom.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "site_pages"]
exclude_patterns = ["_build"]
default_role = "literal"  # `name` in a docstring
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures; links in pages are Markdown's, and all are checked

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "deflist"]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
html_title = f"Polyloom {version}"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_copy_source = html_use_index = False
html_show_sphinx = False
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
