"""The batch scripts that users begin with, and what of a site goes into them."""
