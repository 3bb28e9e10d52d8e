"""The documentation site: `make docs` builds it, without a network; warnings are errors."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx_gallery.sorting import ExplicitOrder

import batchformer

ROOT = Path(__file__).parents[1]

project = "batchformer"
author = "The batchformer authors"
project_copyright = "the batchformer authors"
version = release = batchformer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb"]
default_role = "code"
myst_heading_anchors = 4
# Tables of results are made from records and say how in a comment, which may hold anything.
suppress_warnings = ["config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # signatures are short enough; types stand in the text where they matter
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "batchformer"
html_show_sourcelink = False
html_copy_source = False
pygments_dark_style = "github-dark"
html_static_path = ["_static"]
html_css_files = ["site.css"]

sphinx_gallery_conf = {
    "examples_dirs": "../examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "within_subsection_order": ExplicitOrder(
        [
            "own_folder.py",
            "timm_fine_tuning.py",
            "text.py",
            "multi_label.py",
            "segmentation.py",
            "look_into_a_batch.py",
        ]
    ),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "write_computation_times": False,  # its page would fetch scripts from elsewhere
    "plot_gallery": True,
    "show_signature": False,
}


def _outside(match: re.Match[str]) -> str:
    """A link to a file of the repository that is no page of the site: its name alone."""
    text, path = match["text"], match["target"].replace("../", "")
    if text.startswith("`"):
        return text
    return f"`{path}`" if text == path else f"{text} (`{path}`)"


#: Files of the repository that pages link to and that the site does not have. Records lie in
#: `results/`, and the site's pages of results do too: these end in `.md`.
OUTSIDE = (
    r"\[(?P<text>[^\]]+)\]"
    r"\((?P<target>(?:\.\./)*(?:examples/|results/(?![\w-]+\.md)|CITATION\.cff|LICENSE)[^)]*)\)"
)


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Pages are written to be read in the repository: adapt what is elsewhere on the site."""
    if name in ("index", "results", "changelog", "contributing"):
        page = ROOT / ("README.md" if name == "index" else f"{name.upper()}.md")
        app.env.note_dependency(str(page))  # read this page again when that file changes
        text = _from_root(page.read_text().split("\n## Read on")[0])
        source[0] = source[0].replace("{{README}}", text) if name == "index" else text
    source[0] = re.sub(OUTSIDE, _outside, source[0])
    source[0] = re.sub(r"\]\((?:\.\./)+RESULTS\.md", _up(name, "results.md"), source[0])
    source[0] = re.sub(r"\]\((?:\.\./)+CONTRIBUTING\.md", _up(name, "contributing.md"), source[0])


def _up(name: str, page: str) -> str:
    return "](" + "../" * name.count("/") + page


def _from_root(text: str) -> str:
    """Links of a page in the root of the repository, as from `docs`."""
    text = re.sub(r"\]\(docs/results/\)", "](results/index.md)", text)
    text = text.replace("](docs/", "](").replace("](examples/gallery)", "](gallery/index.rst)")
    for name in ("RESULTS", "CONTRIBUTING", "CHANGELOG"):
        text = text.replace(f"]({name}.md", f"]({name.lower()}.md")
    return text


def setup(app: Sphinx) -> None:
    app.connect("source-read", _read)
