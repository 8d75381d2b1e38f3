"""XML that clients send, reduced to what the library expects: elements and text."""

from lxml import etree
from wsgidav.dav_error import HTTP_BAD_REQUEST, DAVError


def plain_xml(body: bytes) -> bytes:
    """Return the document without comments and processing instructions.

    Raises `DAVError` (400) for what is not well-formed or declares a document type: no method of WebDAV needs one, and
    entities are how a small document becomes a large one, or reads a file of ours (RFC 4918, 20.6).
    """
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = etree.fromstring(body, parser)
    except etree.XMLSyntaxError as error:
        raise DAVError(HTTP_BAD_REQUEST, f"the body is not well-formed XML: {error.msg}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise DAVError(HTTP_BAD_REQUEST, "the body declares a document type, which is not accepted")
    document: bytes = etree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document
