"""Tools to offer with `antwort serve --tools examples/shop_tools.py`; `served_tools.py` does that and uses them."""

from antwort import Toolset, tool

shop = Toolset("shop", instructions="Prices are in euros. Look things up before you promise them.")


@shop.tool
def price(article: str, pieces: int = 1) -> float:
    """What an article costs.

    Args:
        article: Its name.
        pieces: How many of it.
    """
    return 12.5 * pieces


@tool
def now() -> str:
    """What time it is. Not in a toolset: it answers for a function `now` that a request declares, too."""
    return "12:00"
