"""What the site has beside its written pages: facts of the code and numbers of result files, as Markdown."""
