"""Single values in the models of generated modules: how pydantic reads and writes them, without pydantic.

A validator is a function of (value, state); see mcpstandin.py.
"""

import datetime
import enum
import ipaddress
import math
import re
import uuid

LAX, STRICT, EXACT = 0, 1, 2  # how well a value matched: converted; another type for the same; as it is

_INT = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*(?:\.0+)?")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.I)
_TIME = (r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2})(?:[.,](?P<part>[0-9]{1,9}))?)?"
         r"(?P<zone>[Zz]|[+\-\u2212][0-9]{2}:?[0-9]{2})?")
_ONLY_TIME = re.compile(_TIME)
_DATE = re.compile(r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})")
_DATETIME = re.compile(_DATE.pattern + "[Tt _]" + _TIME)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_UUID = re.compile(r"(?:urn:uuid:)?(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
                   r"|\{[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}", re.I)
_TRUE = frozenset(("1", "on", "t", "true", "y", "yes"))
_FALSE = frozenset(("0", "off", "f", "false", "n", "no"))
_MILLISECONDS = 20_000_000_000  # a larger timestamp counts these
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class _Invalid(Exception):
    """What is wrong with a value: [(type, location, message, input)]."""

    def __init__(self, lines):
        super().__init__()
        self.lines = lines

    def within(self, place):
        return [(kind, (place,) + loc, message, value) for kind, loc, message, value in self.lines]


def invalid(kind, message, value):
    return _Invalid([(kind, (), message, value)])


def words(items):
    items = list(items)
    return items[0] if len(items) == 1 else "%s or %s" % (", ".join(items[:-1]), items[-1])


def as_text(value, state):
    """bytes as pydantic reads them where text is meant; other values as they are."""
    if isinstance(value, (bytes, bytearray)):
        state.floor(LAX)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise invalid("string_unicode", "Input should be a valid string, unable to parse raw data as a unicode "
                          "string", value) from None
    return value


def validate_str(value, state):
    if type(value) is str:
        return value
    text = as_text(value, state)
    if not isinstance(text, str):
        raise invalid("string_type", "Input should be a valid string", value)
    state.floor(STRICT)
    return str.__str__(text)


def validate_int(value, state):
    if type(value) is int:
        return value
    if isinstance(value, bool) or isinstance(value, float):
        state.floor(LAX)
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid("finite_number", "Input should be a finite number", value)
        if value != int(value):
            raise invalid("int_from_float", "Input should be a valid integer, got a number with a fractional part", value)
        return int(value)
    if isinstance(value, int):
        state.floor(STRICT)
        return int(value)
    text = as_text(value, state)
    if not isinstance(text, str):
        raise invalid("int_type", "Input should be a valid integer", value)
    state.floor(LAX)
    text = text.strip()
    if len(text) > 4300:
        raise invalid("int_parsing_size", "Unable to parse input string as an integer, exceeded maximum size", value)
    if not _INT.fullmatch(text):
        raise invalid("int_parsing", "Input should be a valid integer, unable to parse string as an integer", value)
    return int(text.partition(".")[0])


def validate_float(value, state):
    if type(value) is float:
        return value
    if isinstance(value, (int, float)):
        state.floor(LAX if isinstance(value, bool) else STRICT)
        try:
            return float(value)
        except OverflowError:
            raise invalid("float_type", "Input should be a valid number", value) from None
    text = as_text(value, state)
    if not isinstance(text, str):
        raise invalid("float_type", "Input should be a valid number", value)
    state.floor(LAX)
    if not _FLOAT.fullmatch(text.strip()):
        raise invalid("float_parsing", "Input should be a valid number, unable to parse string as a number", value)
    return float(text)


def validate_bool(value, state):
    if isinstance(value, bool):
        return value
    state.floor(LAX)
    text = as_text(value, state)
    if isinstance(text, str):
        word = text.lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    elif isinstance(value, (int, float)):
        if value in (0, 1):
            return bool(value)
        if isinstance(value, float):
            raise invalid("bool_type", "Input should be a valid boolean", value)
    else:
        raise invalid("bool_type", "Input should be a valid boolean", value)
    raise invalid("bool_parsing", "Input should be a valid boolean, unable to interpret input", value)


# ---- dates and times

def _zone(text):
    if not text:
        return None
    if text in "Zz":
        return datetime.timezone.utc
    minutes = int(text[1:3]) * 60 + int(text[-2:])
    return datetime.timezone(datetime.timedelta(minutes=minutes if text[0] == "+" else -minutes))


def _clock(found):
    part = (found["part"] or "0")[:6].ljust(6, "0")
    return (int(found["hour"]), int(found["minute"]), int(found["second"] or 0), int(part)), _zone(found["zone"])


def _from_timestamp(number):
    if abs(number) > _MILLISECONDS:
        number /= 1000
    return _EPOCH + datetime.timedelta(microseconds=round(number * 1000000))


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_datetime(text):
    """Raises ValueError or OverflowError if it is not valid."""
    found = _DATETIME.fullmatch(text)
    if found:
        clock, zone = _clock(found)
        return datetime.datetime(int(found["year"]), int(found["month"]), int(found["day"]), *clock, tzinfo=zone)
    found = _DATE.fullmatch(text)
    if found:
        return datetime.datetime(int(found["year"]), int(found["month"]), int(found["day"]))
    if _NUMBER.fullmatch(text):
        return _from_timestamp(float(text))
    raise ValueError("no date and time")


def validate_datetime(value, state):
    if isinstance(value, datetime.datetime):
        return value
    state.floor(LAX)
    text = as_text(value, state)
    try:
        if isinstance(text, str):
            return parse_datetime(text)
        if isinstance(value, datetime.date):
            return datetime.datetime(value.year, value.month, value.day)
        if _is_number(value):
            return _from_timestamp(value)
    except (ValueError, OverflowError):
        raise invalid("datetime_from_date_parsing", "Input should be a valid datetime or date", value) from None
    raise invalid("datetime_type", "Input should be a valid datetime", value)


def validate_date(value, state):
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    state.floor(LAX)
    text = as_text(value, state)
    try:
        if isinstance(text, str):
            value = parse_datetime(text)
        elif _is_number(value):
            value = _from_timestamp(value)
    except (ValueError, OverflowError):
        raise invalid("date_from_datetime_parsing", "Input should be a valid date or datetime", value) from None
    if not isinstance(value, datetime.datetime):
        raise invalid("date_type", "Input should be a valid date", value)
    if value.time() != datetime.time():
        raise invalid("date_from_datetime_inexact", "Datetimes provided to dates should have zero time - e.g. be exact "
                      "dates", value)
    return value.date()


def validate_time(value, state):
    if isinstance(value, datetime.time):
        return value
    state.floor(LAX)
    text = as_text(value, state)
    try:
        if isinstance(text, str):
            found = _ONLY_TIME.fullmatch(text)
            if not found:
                raise ValueError("no time")
            clock, zone = _clock(found)
            return datetime.time(*clock, tzinfo=zone)
        if _is_number(value) and 0 <= value < 86400:
            return _from_timestamp(value).timetz()
    except (ValueError, OverflowError):
        raise invalid("time_parsing", "Input should be in a valid time format", value) from None
    raise invalid("time_type", "Input should be a valid time", value)


# ---- other texts

def validate_uuid(value, state):
    if isinstance(value, uuid.UUID):
        return value
    state.floor(LAX)
    text = as_text(value, state) if not isinstance(value, (bytes, bytearray)) or len(value) != 16 else value
    if isinstance(text, str):
        if _UUID.fullmatch(text):
            return uuid.UUID(text)
        raise invalid("uuid_parsing", "Input should be a valid UUID", value)
    if isinstance(text, (bytes, bytearray)):
        return uuid.UUID(bytes=bytes(text))
    raise invalid("uuid_type", "UUID input should be a string, bytes or UUID object", value)


def _address(cls, number):
    def validate(value, state):
        if isinstance(value, cls):
            return value
        state.floor(LAX)
        try:
            return cls(value)
        except (ValueError, TypeError, AttributeError):
            raise invalid("ip_v%d_address" % number, "Input is not a valid IPv%d address" % number, value) from None

    return validate


SCALARS = {
    str: validate_str, int: validate_int, float: validate_float, bool: validate_bool,
    datetime.datetime: validate_datetime, datetime.date: validate_date, datetime.time: validate_time,
    uuid.UUID: validate_uuid,
    ipaddress.IPv4Address: _address(ipaddress.IPv4Address, 4),
    ipaddress.IPv6Address: _address(ipaddress.IPv6Address, 6),
}


# ---- enums

def enum_validator(cls):
    """None: not an enum of a generated module."""
    if not isinstance(cls, type) or not issubclass(cls, enum.Enum) or not issubclass(cls, (str, int)):
        return None
    read = validate_str if issubclass(cls, str) else validate_int
    members = {member.value: member for member in cls}
    message = "Input should be %s" % words(repr(value) for value in members)

    def validate(value, state):
        if isinstance(value, cls):
            return value
        state.floor(LAX)
        try:
            return members[read(value, state)]
        except (KeyError, _Invalid):
            raise invalid("enum", message, value) from None

    return validate


# ---- as JSON

def _iso(value):
    text = value.isoformat()
    return text[:-6] + "Z" if text.endswith("+00:00") else text


def jsonable(value):
    """Converts a value that is not JSON to its JSON form; others are unchanged."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (datetime.datetime, datetime.time)):
        return _iso(value)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, (uuid.UUID, ipaddress.IPv4Address, ipaddress.IPv6Address)):
        return str(value)
    return value
