"""Parts of HTML pages: hidden elements, the main part, furniture such as menus, the text of a picture; code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import Any

from lxml import etree

from recovery.data.corpus.text import SENTENCE_ENDS, WIDE_ENDS, words

BLOCKS = words(
    "address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure "
    "footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main nav ol p pre search section summary table tbody td "
    "tfoot th thead tr ul"
)
_UNSEEN = words(
    "script style noscript template head nav search button select datalist option iframe object audio video canvas "
    "del s strike"  # struck out
)
_ROLES = words("navigation search contentinfo")
_PAGES = words("next prev previous up")  # to which a link leads
WHOLE = words("html body main article")
_ANCHORS = words("# ¶ § 🔗")  # links to the heading that they stand in
_INVISIBLE = "\u200b\u2060\ufeff"  # the text of such links in Docusaurus and VitePress
_LEAST_MAIN_SHARE = 0.5  # of the text of a page; with less, the marked main part is not all of the content
_FILE = re.compile(r".*(?:\.(?:png|jpe?g|gif|svg|webp|avif|bmp|ico|tiff?)|\b(?:logo|icon|badge))", re.IGNORECASE)
_SIGN = re.compile(r"[!-/:-@\[-`{-~\s]*|\[[^\]]{0,20}\]")  # "*", or "[Note]" beside the word itself

_NEAR, _LONGEST = 10, 300  # elements, characters: searched for the words of an image, for links


def is_unseen(node: Any) -> bool:
    """Return whether an element is not text of its page: a script, a menu, a footer, a link to its own place."""
    tag = node.tag
    if tag in _UNSEEN or _is_anchor(node):
        return True
    if tag == "footer":  # that of a quotation names its source
        return node.getparent().tag != "blockquote"
    if tag in WHOLE:
        return False
    if (tag == "p" and _is_pager(node)) or (tag not in BLOCKS and node.get("aria-hidden") == "true"):
        return True
    return node.get("role") in _ROLES


def _is_anchor(node: Any) -> bool:
    """Return whether an element is a link that only marks a place, most often the heading that it stands in."""
    text = (node.text or "").strip()
    return node.tag == "a" and not len(node) and bool(text) and (text.strip(_INVISIBLE) or "#") in _ANCHORS


def _is_pager(paragraph: Any) -> bool:
    """Return whether a paragraph is a row of links to the next page, the previous page, ..."""
    if not any(link.get("rel") in _PAGES for link in islice(paragraph.iterchildren("a"), 2)):
        return False
    texts = list(islice(paragraph.itertext(), 3 * _NEAR))
    return len(texts) < 3 * _NEAR and sum(map(len, texts)) < _LONGEST


def main_part(tree: Any) -> Any:
    """Return the element that a page marks as its main part, if it has half of the text, else the whole page."""
    main = next((node for node in tree.iter(etree.Element) if node.tag == "main" or node.get("role") == "main"), None)
    return tree if main is None or _readable_length(main) < _LEAST_MAIN_SHARE * _readable_length(tree) else main


def _readable_length(tree: Any) -> int:
    """Return how many characters of a tree are for reading."""
    size = 0
    walk = etree.iterwalk(tree, events=("start", "end"))
    for event, node in walk:
        text = node.text if event == "start" else node.tail if node is not tree else None
        if event == "start" and is_unseen(node):
            walk.skip_subtree()
        else:
            size += len((text or "").strip())
    return size


def picture(node: Any) -> str:
    """Return the alternative text of an image; "" for a file's name, a logo, or text that the page has beside it."""
    if node.tag == "svg":
        return one_line(node.findtext("title") or "")
    alt = one_line(node.get("alt") or "")
    file = re.split(r"[?#]", node.get("src") or "", maxsplit=1)[0].rpartition("/")[2]
    if alt == file.partition(".")[0] or _SIGN.fullmatch(alt) or _FILE.fullmatch(alt):
        return ""
    around = next((parent for parent in islice(node.iterancestors(), 3) if parent.tag in ("a", "figure")), None)
    neighbours = [] if around is None else [(part.text, part.tail) for part in islice(around.iter(), _NEAR)]
    texts = (text[:_LONGEST] for pair in neighbours for text in pair if text)
    return "" if alt.casefold() in one_line(" ".join(texts)).casefold() else alt


def one_line(text: str) -> str:
    """Return a text with single spaces in place of every white space."""
    return " ".join(text.split())


def code(text: str) -> str:
    """Return code as HTML."""
    return f"<code>{escape(one_line(text), quote=False)}</code>"


def listing(text: str, language: str) -> str:
    """Return lines of code as HTML, with their language if it is named."""
    attribute = f' class="language-{language}"' if re.fullmatch(r"[\w+#.-]{1,20}", language) else ""
    return f"<pre><code{attribute}>\n{escape(text, quote=False)}\n</code></pre>\n"


# Furniture, the parts around the content of a web page: menus, cookie banners, bylines, additions of wikis.
#
# It is recognised by its classes, its id and its label. A name that a program gives to a part of its own is enough.
# Words such as "menu" also name content (of a restaurant): such a block is left out if most of its text is in links,
# which text that is to be read never has (link density: Kohlschütter et al., Boilerplate Detection using Shallow Text
# Features, 2010).

_FURNITURE_NAMES = words(
    # Docutils, Sphinx, DocBook; numbers of lines, links to the source
    "footer navheader navfooter nav-panel linenos lineno viewcode-link "
    # Confluence
    "breadcrumb-section page-metadata page-metadata-banner toc-macro pagesection likes-and-labels-container "
    "comments-section childpages-macro plugin_pagetree recently-updated contributors-macro plugin-contributors "
    "plugin_attachments_container pagesubheading ia-fixed-sidebar "
    # MediaWiki
    "mw-editsection printfooter catlinks mw-jump-link sitesub contentsub mw-indicators mw-navigation mw-panel mw-head "
    "vector-header-container vector-page-toolbar vector-toc vector-column-start mw-portlet navbox jump-to-nav "
    "authority-control mw-authority-control sistersitebox ambox toctitle mw-footer "
    # SharePoint
    "s4-ribbonrow suitebar suitenavwrapper sidenavbox deltatopnavigation globalnavbox s4-leftpanel "
    "s4-statusbarcontainer ms-designer-ribbon "
    "ms-siteactionscontainer ms-webpart-menubox ms-socialnotif ms-skip authorbyline "
    # Notion
    "page-header-icon table_of_contents property-row-created_by property-row-last_edited_by property-row-person "
    "property-row-created_time property-row-last_edited_time "
    # programs that ask for consent, links for keyboards
    "onetrust-consent-sdk onetrust-banner-sdk cybotcookiebotdialog cookie-law-info-bar cc-window cky-consent-container "
    "cmplz-cookiebanner qc-cmp2-container usercentrics-root truste_box_overlay iubenda-cs-banner didomi-host "
    "osano-cm-window sp_message_container fc-consent-root hs-eu-cookie-confirmation moove_gdpr_cookie_info_bar "
    "skip-link skiplink skip-nav skip-to-content"
)
_SERVER = words("asp sharepoint webpartpages publishingwebcontrols")
# Controls of a server (ASP.NET) that show what is in them; others, as lists to choose from, are filled in there.
_SHOWN = words("content panel placeholder updatepanel contenttemplate multiview view label literal localize hyperlink")
_MENUS = words("nav navbar navigation toc")  # of content only if they hold sentences
_MENU_WORDS = _MENUS | words(
    "menu menubar submenu subnav topnav sidenav sidebar breadcrumb breadcrumbs pagination pager topbar crumbs "
    "megamenu mainmenu"
)
_LINES = words("breadcrumb breadcrumbs byline author-byline post-byline entry-meta post-meta article-meta")
_CONSENT = re.compile(
    r"(?:cookie|gdpr|consent|privacy)s?[-_]?\w*?[-_]?"
    r"(?:banner|bar|notice|popup|modal|dialog|overlay|message|alert|wall|consent|disclaimer|prompt)",
    re.ASCII,
)
_COOKIES = re.compile(r"\bcookies?\b", re.IGNORECASE)
_DIALOGS = words("dialog alertdialog")
_CONTROLS = words("button input")
_CONTENT = words("h1 pre table")  # is in no banner
_HEADINGS = words("h1 h2 h3 h4 h5 h6")
_PLACES = _HEADINGS | words("section article a span dt")  # whose id is the address of what they contain
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORD = re.compile(r"[^a-z0-9]+")
_ENDS, _BEHIND = SENTENCE_ENDS + WIDE_ENDS, "\"')]»”’"
_SENTENCE = 7  # words that no entry of a menu has
_SEPARATORS = " \t\r\n|·•‣›»>/\\-–—:,"
_ROW = 3  # links
_LONGEST_BANNER, _LONGEST_LINE, _LONGEST_NAME = 2_000, 300, 100  # characters


@dataclass
class _Block:
    """Content of an element: characters in links and outside of links, and signs of its kind."""

    linked: int = 0
    others: int = 0
    sentences: bool = False
    cookies: bool = False
    control: bool = False
    links: int = 0
    content: bool = False
    heading: bool = False

    def add(self, inner: _Block) -> None:
        self.linked += inner.linked
        self.others += inner.others
        self.sentences |= inner.sentences
        self.cookies |= inner.cookies
        self.control |= inner.control
        self.links += inner.links
        self.content |= inner.content
        self.heading |= inner.heading

    @property
    def dense(self) -> bool:
        """Whether at least half of the text is in links."""
        return self.linked > 0 and self.linked >= self.others


def clear_furniture(tree: Any) -> None:
    """Empty the elements of a page that are furniture; the text after them stays. Takes linear time."""
    furniture: list[Any] = []
    menu: list[Any] = []  # blocks of links before the first heading of level 1
    open_blocks: list[_Block] = [_Block()]
    links, content_begun, has_heading = 0, False, False
    walk = etree.iterwalk(tree, events=("start", "end"))
    unseen = None
    for event, node in walk:
        if event == "start":
            open_blocks.append(_Block(control=node.tag in _CONTROLS or node.get("role") == "button"))
            if is_unseen(node):
                walk.skip_subtree()
                unseen = node
                continue
            links += node.tag == "a"
            _count_text(open_blocks[-1], node.text, links > 0)
            continue
        block = open_blocks.pop()
        if node is not unseen:
            links -= node.tag == "a"
            block.content |= node.tag in _CONTENT
            block.heading |= node.tag in _HEADINGS
            block.control |= node.tag == "a"
            block.links += node.tag == "a"
            if _is_furniture(node, block):
                furniture.append(node)
                block = _Block()
            elif not content_begun and node.tag not in WHOLE:
                if node.tag == "h1":
                    content_begun = has_heading = True
                elif block.sentences or (block.others and node.tag in _HEADINGS):
                    content_begun = True  # text that is no link may be content, of which links above it are part
                elif node.tag in BLOCKS and block.linked and not block.others:
                    menu.append(node)
        open_blocks[-1].add(block)
        _count_text(open_blocks[-1], node.tail, links > 0)
    for node in [*furniture, *(menu if has_heading else ())]:
        node.clear(keep_tail=True)


def _count_text(block: _Block, text: str | None, linked: bool) -> None:
    text = (text or "").strip(_SEPARATORS)
    if linked:
        block.linked += len(text)
    elif text:
        block.others += len(text)
        block.sentences |= text.rstrip(_BEHIND)[-1:] in _ENDS or len(text.split(None, _SENTENCE)) >= _SENTENCE
    block.cookies |= bool(_COOKIES.search(text))


def _is_furniture(node: Any, block: _Block) -> bool:
    tag = node.tag
    if tag in WHOLE:
        return False
    prefix, _, local = tag.partition(":")
    if local and (prefix in _SERVER or node.get("runat")) and local not in _SHOWN:
        return True
    size = block.linked + block.others
    names = _names(node)
    lower = {name.lower() for name in names}
    if lower & _FURNITURE_NAMES:
        return True
    banner = block.control and not block.content and size <= _LONGEST_BANNER
    if banner and any(_CONSENT.search(name) for name in lower):
        return True
    dialog = tag == "dialog" or node.get("role") in _DIALOGS or node.get("aria-modal") == "true"
    if banner and dialog and block.cookies:
        return True
    if lower & _LINES and size <= _LONGEST_LINE:
        return True
    row = block.links >= _ROW and block.others <= _LONGEST_LINE  # with the date of a release below it
    if lower & _MENUS and (row or not block.sentences):
        return True
    if not block.dense or block.content:
        return False
    if (tag == "aside" and block.links >= _ROW) or (tag == "header" and not block.heading):
        return True
    return any(not _MENU_WORDS.isdisjoint(_WORD.split(_CAMEL.sub("-", name).lower())) for name in names)


def _names(node: Any) -> list[str]:
    """Return the names of an element: its classes, its id, unless that is the address of a section, and its label."""
    names = (node.get("class") or "").split()
    if (named := node.get("id")) and node.tag not in _PLACES and "section" not in names:
        names.append(named)
    if label := node.get("aria-label"):
        names.append("-".join(label.split()))
    return [name for name in names if len(name) <= _LONGEST_NAME]
