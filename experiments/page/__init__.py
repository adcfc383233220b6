"""report.html: one page without any request, from a template, a style sheet and a little JavaScript."""
