"""Dead properties in memory, with a cap on their size (RFC 4918, 4)."""

from typing import Any

from wsgidav.dav_error import HTTP_INSUFFICIENT_STORAGE, DAVError
from wsgidav.prop_man.property_manager import PropertyManager

MOST_BYTES_OF_ONE = 64 << 10
MOST_BYTES = 16 << 20


class Properties(PropertyManager):  # type: ignore[misc]
    """What clients have noted about the entries of one mount. It ends with the process."""

    @property
    def has_any(self) -> bool:
        """Whether anything has been noted about anything."""
        return bool(self._dict)

    def write_property(
        self,
        norm_url: str,
        name: str,
        property_value: bytes,
        dry_run: bool = False,
        environ: dict[str, Any] | None = None,
    ) -> None:
        """Keep a property; raises `DAVError` (507) when there is no room for it."""
        size = _size({name: property_value})
        of_one = _size((self._dict or {}).get(norm_url, {}))
        if of_one + size > MOST_BYTES_OF_ONE or self._size() + size > MOST_BYTES:
            raise DAVError(
                HTTP_INSUFFICIENT_STORAGE,
                f"there is room for {MOST_BYTES_OF_ONE} bytes of properties of one entry, and {MOST_BYTES} of all",
            )
        super().write_property(norm_url, name, property_value, dry_run, environ)

    def _size(self) -> int:
        return sum(map(_size, list((self._dict or {}).values())))


def _size(properties: dict[str, bytes]) -> int:
    return sum(len(name) + len(value) for name, value in list(properties.items()))
