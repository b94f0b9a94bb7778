"""Numbers to compare other implementations with, and the script that writes them."""
