#!/usr/bin/env python3
"""Computes every test vector beside this file anew, in Python's standard library alone.

It shares nothing with the Rust code but README.md, the recipe, and so shows that another language can
follow it. Prints what differs and then exits with 1.
"""

import decimal
import hashlib
import json
import pathlib
import re
import sys
import unicodedata
import uuid

TEXT_BYTES_MAX = 256 * 1024
DEPTH_MAX = 128
BLANKS = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class Refused(Exception):
    """The call or the text is refused, for the reason in args[0]."""


# Canonical JSON


class Number(str):
    """A number, as its canonical text."""


def parse(text):
    """A JSON text as None, bool, Number, str, list and dict: NFC, no null members."""
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise Refused("ARGUMENTS_TOO_LARGE")
    try:
        value = json.loads(
            text,
            parse_int=number,
            parse_float=number,
            parse_constant=not_json,
            object_pairs_hook=members,
        )
    except RecursionError:
        raise Refused("ARGUMENTS_TOO_DEEP") from None
    except json.JSONDecodeError as error:
        control = error.msg.startswith("Invalid control character")
        raise Refused("ARGUMENTS_MALFORMED" if control else "ARGUMENTS_MALFORMED") from None
    return cleaned(value, 0)


def not_json(_constant):
    raise Refused("ARGUMENTS_MALFORMED")


def members(pairs):
    result = {}
    for name, value in pairs:
        name = nfc(name)
        if name in result:
            raise Refused("ARGUMENTS_DUPLICATE_MEMBER")
        result[name] = value
    return {name: value for name, value in result.items() if value is not None}


def cleaned(value, depth):
    if isinstance(value, (list, dict)) and depth == DEPTH_MAX:
        raise Refused("ARGUMENTS_TOO_DEEP")
    if isinstance(value, dict):
        return {name: cleaned(member, depth + 1) for name, member in value.items()}
    if isinstance(value, list):
        return [cleaned(element, depth + 1) for element in value]
    if isinstance(value, str) and not isinstance(value, Number):
        return nfc(value)
    return value


def nfc(text):
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise Refused("ARGUMENTS_LONE_SURROGATE")
    return unicodedata.normalize("NFC", text)


def number(text):
    if not re.search("[1-9]", text.lower().split("e")[0]):
        return Number("0")
    try:
        sign, digits, exponent = decimal.Decimal(text).as_tuple()
    except decimal.DecimalException:
        raise Refused("ARGUMENTS_MALFORMED") from None
    if not isinstance(exponent, int):  # infinite
        raise Refused("ARGUMENTS_MALFORMED")
    digits = "".join(map(str, digits))
    point = len(digits) + exponent  # the value is 0.DIGITS * 10 ** point
    digits = digits.rstrip("0")
    if not -(2**31) <= point - 1 < 2**31:
        raise Refused("ARGUMENTS_MALFORMED")
    if -6 < point <= 0:
        layout = "0." + "0" * -point + digits
    elif 0 < point <= 21:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        layout = whole + ("." + fraction if fraction else "")
    else:
        layout = digits[0] + ("." + digits[1:] if digits[1:] else "") + "e%+d" % (point - 1)
    return Number("-" * sign + layout)


def canonical(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return '"' + re.sub('[\x00-\x1f"\\\\]', escape, value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return "{" + ",".join(canonical(name) + ":" + canonical(value[name]) for name in names) + "}"


def escape(match):
    short = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"'}
    c = match.group()
    return "\\\\" if c == "\\" else short.get(c, "\\u%04x" % ord(c))


# JSON Pointer


def tokens(pointer):
    return [nfc(t.replace("~1", "/").replace("~0", "~")) for t in pointer.split("/")[1:]]


def step(value, token):
    """What an index or name must be to take one step into the value, or None."""
    if isinstance(value, dict):
        return token if token in value else None
    if isinstance(value, list) and re.fullmatch("0|[1-9][0-9]*", token):
        return int(token) if int(token) < len(value) else None
    return None


def find(value, pointer):
    for token in tokens(pointer):
        at = step(value, token)
        if at is None:
            return None
        value = value[at]
    return value


def without(value, path):
    """A copy without the place that the tokens lead to."""
    if not path:
        return None
    at = step(value, path[0])
    if at is None:
        return value
    copy = value.copy()
    if len(path) > 1:
        copy[at] = without(value[at], path[1:])
    elif isinstance(copy, dict):
        del copy[at]
    else:
        copy[at] = None
    return copy


# Identity


def array(recipe, purpose, *parts):
    return canonical(["intent-ledger/%d%s" % (recipe.get("hash_version", 1), purpose), *parts])


def sha256(text):
    return hashlib.sha256(text.encode()).digest()


def check_text(text, bytes_max, reason):
    control = any(unicodedata.category(c) == "Cc" for c in text)
    if len(text.encode()) > bytes_max or control or not text.strip(BLANKS):
        raise Refused(reason)


def identify(recipe, call):
    """The basis, whether the policy overrode the caller, and the text that is hashed."""
    key, ids = call.get("idempotency_key", ""), call.get("business_ids", {})
    namespace, tool = call["namespace"], call["tool"]
    run_id, step_id = call.get("run_id", ""), call.get("step_id", "")
    arguments = parse(call.get("arguments_json", "{}"))
    if key and ids:
        raise Refused("IDENTITY_AMBIGUOUS")
    if key:
        check_text(key, 255, "IDEMPOTENCY_KEY_INVALID")
        if key != key.strip(BLANKS):
            raise Refused("IDEMPOTENCY_KEY_INVALID")
    if len(ids) > 32:
        raise Refused("BUSINESS_IDS_INVALID")
    for name, value in ids.items():
        check_text(name, 255, "BUSINESS_IDS_INVALID")
        check_text(value, 1024, "BUSINESS_IDS_INVALID")
    if len({nfc(name) for name in ids}) < len(ids):
        raise Refused("BUSINESS_IDS_INVALID")

    def run():
        if recipe.get("scope", "run") == "namespace":
            return None
        if not run_id:
            raise Refused("RUN_REQUIRED")
        return run_id

    places = recipe.get("identity", [])
    if places:
        basis, parts = "POLICY", [tool, run(), policy_values(places, arguments)]
    elif key:
        basis, parts = "IDEMPOTENCY_KEY", [key]
    elif ids:
        ids = {nfc(name): nfc(value) for name, value in ids.items()}
        basis, parts = "BUSINESS_IDS", [tool, run(), ids]
    elif run_id and step_id:
        basis, parts = "STEP_ARGUMENTS", [tool, run_id, step_id, arguments]
    else:
        raise Refused("IDENTITY_REQUIRED")
    overridden = basis == "POLICY" and bool(key or ids)
    return basis, overridden, array(recipe, "", namespace, basis, *parts)


def policy_values(places, arguments):
    result = {}
    for place in places:
        value = find(arguments, place["pointer"])
        if value is None:
            raise Refused("IDENTITY_POINTER_EMPTY")
        if isinstance(value, (list, dict)):
            raise Refused("IDENTITY_NOT_SCALAR")
        text = canonical(value) if isinstance(value, bool) else str(value)
        for normalize in place.get("normalize", []):
            if normalize == "trim":
                text = text.strip(BLANKS)
            elif normalize == "lowercase":
                text = text.lower()
            elif normalize == "collapse_whitespace":
                text = re.sub("[" + BLANKS + "]+", " ", text)
        if not text.strip(BLANKS):
            raise Refused("IDENTITY_POINTER_EMPTY")
        result[nfc(place["pointer"])] = nfc(text)
    return result


def fingerprinted(recipe, declared_free_text, call, basis):
    """The text that is hashed to the fingerprint."""
    binding = parse(call.get("arguments_json", "{}"))
    pointers = recipe.get("free_text", []) + declared_free_text
    if basis == "POLICY":
        pointers = pointers + [place["pointer"] for place in recipe["identity"]]
    for pointer in pointers:
        binding = without(binding, tokens(pointer))
    return array(recipe, "/fingerprint", call["tool"], binding)


# The vectors


def written_out(text):
    """A long text is given as a list of [piece, times]."""
    return text if isinstance(text, str) else "".join(piece * times for piece, times in text)


def canonical_json_vector(vector):
    return {"canonical": canonical(parse(written_out(vector["text"])))}


def key_vector(vector):
    recipe = vector.get("recipe", {})
    basis, overridden, hashed = identify(recipe, vector["call"])
    key = sha256(hashed).hex()
    downstream = sha256(array(recipe, "/downstream", key))
    attempt = array(recipe, "/downstream", key, Number("2"))
    return {
        "basis": basis,
        "overridden": overridden,
        "hashed": hashed,
        "key": key,
        "downstream_key": downstream.hex(),
        "downstream_key_of_attempt_2": sha256(attempt).hex(),
        "downstream_uuid": str(version_8(downstream[:16])),
    }


def version_8(octets):
    octets = bytearray(octets)
    octets[6] = octets[6] & 0x0F | 0x80
    octets[8] = octets[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(octets))


def fingerprint_vector(vector):
    recipe = vector.get("recipe", {})
    basis, _, _ = identify(recipe, vector["call"])
    hashed = fingerprinted(recipe, vector.get("declared_free_text", []), vector["call"], basis)
    return {"basis": basis, "hashed": hashed, "fingerprint": sha256(hashed).hex()}


def computed(compute, vector):
    try:
        return compute(vector)
    except Refused as refused:
        return {"error": refused.args[0]}


def expected(vector):
    inputs = {"name", "text", "recipe", "call", "declared_free_text", "same_as"}
    result = {field: value for field, value in vector.items() if field not in inputs}
    if "canonical" in result:
        result["canonical"] = written_out(result["canonical"])
    return result


def faults(file, compute, hash_field):
    """What is wrong in one file, as lines."""
    vectors = json.loads((pathlib.Path(__file__).parent / file).read_text("ascii"))
    names, first_of_hash = {}, {}
    for vector in vectors:
        name = vector["name"]
        result = computed(compute, vector)
        if name in names:
            yield f"{file}: {name}: stands twice"
        if result != expected(vector):
            yield f"{file}: {name}: computed {json.dumps(result)}"
        names[name] = names.get(vector.get("same_as"), name)
        if hash_field in result:
            first = first_of_hash.setdefault(result[hash_field], name)
            if first != names[name]:
                yield f"{file}: {name}: has the {hash_field} of {first}"
        if vector.get("same_as") and names[name] == name:
            yield f"{file}: {name}: same_as names no vector before it"
        elif "same_as" in vector and first_of_hash.get(result.get(hash_field)) != names[name]:
            yield f"{file}: {name}: has not the {hash_field} of {vector['same_as']}"
    print(f"{file}: {len(vectors)} vectors")


def main():
    found = [
        *faults("canonical_json.json", canonical_json_vector, "canonical"),
        *faults("keys.json", key_vector, "key"),
        *faults("fingerprints.json", fingerprint_vector, "fingerprint"),
    ]
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
