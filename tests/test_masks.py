"""Pairwise masks: they cancel in the sum of all, and only there; and what a server may try."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats

from twinflower.errors import ReplyError, SettingError
from twinflower.sums.grid import add
from twinflower.sums.masks import (
    _PURPOSE,
    ANNOUNCEMENT,
    Identity,
    Peers,
    Session,
    inbox_digest,
    public_bytes,
    roster_of,
)

SITES, COUNT = 5, 20_000
POINT = inbox_digest([np.arange(3.0)])
ERROR = 1e-9


class Meeting:
    """Sites that know each other, and their keys of a session."""

    def __init__(self, sites: int = SITES) -> None:
        keys = [Ed25519PrivateKey.generate() for _ in range(sites)]
        self.peers = Peers(tuple(map(public_bytes, keys)))
        self.sites = [Identity(number, key, self.peers) for number, key in enumerate(keys)]
        self.secrets = [X25519PrivateKey.generate() for _ in keys]

    def announcements(self, session: str = "s", settings: str = "c") -> list[bytes]:
        pairs = zip(self.sites, self.secrets, strict=True)
        return [site.announce(session, settings, secret) for site, secret in pairs]

    def join(self, number: int, roster: bytes, session: str = "s", settings: str = "c") -> Session:
        return Session.join(self.sites[number], self.secrets[number], session, settings, roster)

    def sessions(self) -> list[Session]:
        roster = roster_of(self.announcements())
        return [self.join(number, roster) for number in range(len(self.sites))]


@pytest.fixture(scope="module")
def meeting() -> Meeting:
    return Meeting()


def uniform(words: np.ndarray) -> bool:
    """Whether 64-bit words pass a chi-square test of their bytes, at each of the 8 places."""
    octets = words.view(np.uint8).reshape(-1, 8)
    tests = (stats.chisquare(np.bincount(octets[:, place], minlength=256)) for place in range(8))
    return all(ERROR < test.pvalue < 1 - ERROR for test in tests)


def test_all_masks_cancel_and_no_subset_does(meeting):
    """The sum of all is 0; that of any strict subset is uniform."""
    masks = np.array([session.mask(COUNT, 3, POINT) for session in meeting.sessions()])
    assert not add(masks).any()
    for subset in range(1, 2**SITES - 1):
        chosen = [site for site in range(SITES) if subset >> site & 1]
        assert uniform(add(masks[chosen])), f"the masks of {chosen} do not add up to uniform words"


@pytest.mark.parametrize("sites", [2, 3, 12])
def test_masks_cancel_for_any_number_of_sites(sites):
    assert not add(np.array([s.mask(50, 1, POINT) for s in Meeting(sites).sessions()])).any()


def test_a_repeated_round_has_the_same_mask_and_another_round_another(meeting):
    """The mask is a function of what was agreed on."""
    session = meeting.sessions()[0]
    np.testing.assert_array_equal(session.mask(50, 3, POINT), session.mask(50, 3, POINT))
    assert uniform(session.mask(COUNT, 3, POINT) - session.mask(COUNT, 4, POINT))


@pytest.mark.parametrize("odd", ["inbox", "round", "session"])
def test_what_differs_between_sites_leaves_uniform_noise(meeting, odd):
    """One site is told something else than the others: the masks of all do not cancel."""
    masks = [session.mask(COUNT, 3, POINT) for session in meeting.sessions()]
    if odd == "session":
        other = meeting.join(2, roster_of(meeting.announcements("t")), "t")
        masks[2] = other.mask(COUNT, 3, POINT)
    else:
        session = meeting.sessions()[2]
        masks[2] = (
            session.mask(COUNT, 4, POINT) if odd == "round" else session.mask(COUNT, 3, inbox_digest([]))
        )
    assert uniform(add(np.array(masks)))


def mirrored(meeting: Meeting, key: bytes) -> list[bytes]:
    """All announcements, but site 2 has signed this X25519 key as its own."""
    parts = meeting.announcements()
    head = parts[2][:68] + key
    parts[2] = head + meeting.sites[2].key.sign(_PURPOSE + head)
    return parts


@pytest.mark.parametrize("top_bit", [0, 0x80])
def test_a_site_that_announces_anothers_key_removes_no_mask(top_bit):
    """Site 1 shares one X25519 secret with sites 0 and 2, between whose numbers its own lies. X25519 ignores the top
    bit of a key, so the two announced keys need not be equal."""
    meeting = Meeting(3)
    *start, end = public_bytes(meeting.secrets[0])
    victim = meeting.join(1, roster_of(mirrored(meeting, bytes([*start, end ^ top_bit]))))
    assert victim.secrets[0] == victim.secrets[2]
    assert uniform(victim.mask(COUNT, 3, POINT))


def test_the_digest_of_an_inbox_covers_types_shapes_and_bytes():
    """Arrays that differ in one bit, in shape, in type or in order have different digests."""
    x = np.arange(6.0)
    y = x.copy()
    y[5] = np.nextafter(5, 6)
    boxes = [[x], [y], [x.reshape(2, 3)], [x.view(np.int64)], [x, y], [y, x], [], [x.reshape(3, 2)]]
    assert len({inbox_digest(box) for box in boxes}) == len(boxes)


def spoilt() -> dict[str, tuple[object, str]]:
    """What a server might pass on, and what a site says to it."""

    def resigned(meeting: Meeting) -> list[bytes]:
        stranger = Ed25519PrivateKey.generate()
        parts = meeting.announcements()
        forged = replace_key(meeting, 1, stranger).announce("s", "c", meeting.secrets[1])
        return [parts[0], forged, *parts[2:]]

    def swapped_key(meeting: Meeting) -> list[bytes]:
        parts = meeting.announcements()
        mine = public_bytes(X25519PrivateKey.generate())
        return [parts[0], parts[1][:68] + mine + parts[1][100:], *parts[2:]]

    def own_twice(meeting: Meeting) -> list[bytes]:
        again = meeting.sites[0].announce("s", "c", X25519PrivateKey.generate())
        return [again, *meeting.announcements()[1:]]

    def weak(meeting: Meeting) -> list[bytes]:
        head = meeting.announcements()[1][:68] + bytes(32)
        signature = meeting.sites[1].key.sign(_PURPOSE + head)
        parts = meeting.announcements()
        return [parts[0], head + signature, *parts[2:]]

    return {
        "a site less": (lambda m: m.announcements()[:-1], "has 4 entries, and this site's peers file has 5"),
        "a stranger more": (
            lambda m: [*m.announcements(), Meeting().announcements()[0]],
            "has 6 entries, and this site's peers file has 5",
        ),
        "another order": (
            lambda m: [m.announcements()[i] for i in (0, 2, 1, 3, 4)],
            "place 1 of the list of sites",
        ),
        "one site twice": (
            lambda m: [m.announcements()[i] for i in (0, 2, 2, 3, 4)],
            "place 1 of the list of sites",
        ),
        "a stranger's key": (resigned, "site 1 is not signed by the key"),
        "the server's own session key": (swapped_key, "site 1 is not signed by the key"),
        "an old key message": (
            lambda m: [*m.announcements()[:3], m.announcements("yesterday")[3], m.announcements()[4]],
            "site 3 belongs to another session",
        ),
        "other settings": (
            lambda m: [*m.announcements()[:4], m.announcements(settings="fewer sites")[4]],
            "site 4 runs with other settings",
        ),
        "another key of this site": (own_twice, "another key of this site"),
        "half a key message": (
            lambda m: [*m.announcements()[:4], m.announcements()[4][:-1]],
            "the list of sites has 5 entries",
        ),
        "a key of small order": (weak, "no proper key"),
    }


def replace_key(meeting: Meeting, number: int, key: Ed25519PrivateKey) -> Identity:
    """A site's identity with another private key, for which its own file would not vouch."""
    keys = list(meeting.peers.keys)
    keys[number] = public_bytes(key)
    return Identity(number, key, Peers(tuple(keys)))


@pytest.mark.parametrize("name", spoilt())
def test_a_site_refuses_what_its_peers_did_not_say(meeting, name):
    """In one sentence, and before it computes anything."""
    forge, told = spoilt()[name]
    with pytest.raises(ReplyError, match=told) as refusal:
        meeting.join(0, b"".join(forge(meeting)))  # type: ignore[operator]
    assert "\n" not in str(refusal.value)


def test_announcements_have_one_length(meeting):
    """Digest, number, digest, key, signature."""
    assert {len(part) for part in meeting.announcements()} == {ANNOUNCEMENT} == {32 + 4 + 32 + 32 + 64}
    assert struct.unpack_from(">I", meeting.announcements()[3], 32) == (3,)


def test_the_peers_file_is_read_and_checked(meeting):
    """A line for each site, in any order, with comments."""
    lines = [f"{number} {key.hex()}  # hospital {number}" for number, key in enumerate(meeting.peers.keys)]
    assert Peers.read("# our study\n\n" + "\n".join(reversed(lines))) == meeting.peers
    for text, why in (
        ("\n".join(lines[1:]), "must list each site from 0 to 3"),
        ("\n".join([*lines, lines[0]]), "must list each site from 0 to 5"),
        (lines[0], "at least two sites"),
        ("0 xyz\n1 00", "in hexadecimal"),
        ("0 00\n1 01", "must have 32 bytes"),
        (lines[0] + "\n1 " + meeting.peers.keys[0].hex(), "have the same key"),
    ):
        with pytest.raises(SettingError, match=why):
            Peers.read(text)


def test_an_identity_must_be_in_its_own_file(meeting):
    """Number and key."""
    with pytest.raises(SettingError, match="has no site 7"):
        replace(meeting.sites[0], number=7)
    with pytest.raises(SettingError, match="gives site 1 another public key"):
        replace(meeting.sites[0], number=1)
