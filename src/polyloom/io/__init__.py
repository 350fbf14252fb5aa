"""Write files and folders."""
