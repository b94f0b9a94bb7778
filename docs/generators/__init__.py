"""What the documentation site is made of beside its pages: facts of the code and numbers of result files, as Markdown."""
