"""Reports on runs, experiments and comparisons: single HTML files, and the privacy statement, also as Markdown.

`runs`, `comparisons` and `statement` collect what a report says as the values of `parts`; `render` turns these into
text by the templates in this folder. They end in .md because Flower's bundles hold no .html, .css or .js files.
"""
