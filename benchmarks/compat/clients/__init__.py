"""Scripts that make a real client library do its calls. They run in an environment of their own, without Trimtab.

    python SCRIPT MODEL URL URL URL

One JSON list is printed: for each URL, what each call gave, by name.
"""
