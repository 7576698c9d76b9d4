"""Sphinx's settings; `build.py` copies this file beside the pages."""

project = "keras-bert-zoo"
author = "the keras-bert-zoo authors"
extensions = ["myst_parser"]
root_doc = "index"

myst_heading_anchors = 4  # Anchors as GitHub makes them, so that the pages' links hold in both places.
highlight_language = "none"
smartquotes = False  # They would turn the hyphens of flags into dashes.

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["page.css"]
html_title = "keras-bert-zoo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"top_of_page_buttons": []}
