"""Schemes by their names."""

import pytest

from suture.ec.scheme import OFFERED, CodecName, Scheme, parse_scheme
from suture.errors import Code, RefusedError


class TestNames:
    @pytest.mark.parametrize("scheme", OFFERED, ids=str)
    def test_a_name_leads_back_to_its_scheme(self, scheme: Scheme) -> None:
        """The name of a scheme is parsed as that scheme."""
        assert scheme == parse_scheme(str(scheme))

    def test_upper_case_and_no_cell_size_are_understood(self) -> None:
        """
        Ozone's operators write RS-3-2-1024k; the cell size may be left out.
        """
        assert Scheme(CodecName.RS, 3, 2) == parse_scheme("RS-3-2-1024k") == parse_scheme("rs-3-2")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "invalid erasure code"),
            ("ratis-3", "invalid erasure code"),
            ("rs-3-2-1024", "invalid erasure code"),
            ("rs-0-2", "needs data"),
            ("rs-30-3", "at most 32 shards"),
            ("xor-3-2", "exactly one parity"),
            ("rs-3-2-0k", "a cell of 0 bytes"),
            ("rs-3-2-99999k", "a cell of 102398976 bytes"),
        ],
    )
    def test_invalid_scheme_name_is_refused(self, text: str, message: str) -> None:
        """The message says what is wrong with the name."""
        with pytest.raises(RefusedError, match=message) as caught:
            parse_scheme(text)

        assert Code.MALFORMED_REQUEST is caught.value.code
