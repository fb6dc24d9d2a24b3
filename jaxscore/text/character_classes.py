"""Classes of characters: white space, digits, punctuation, letters and marks by script, others."""

import functools
import unicodedata
from typing import Any

WHITE_SPACE, DIGIT, PUNCTUATION, OTHER = "white space", "digit", "punctuation", "other"
LETTER = "letter "  # before the script
# Scripts with letters in Unicode 14. The standard library lacks scripts; `regex` has them, but
# does not list them.
SCRIPTS = """
Latin Han Cyrillic Arabic Devanagari Greek Hiragana Katakana Hangul Hebrew Thai Bengali Tamil Telugu
Common Inherited
Adlam Ahom Anatolian_Hieroglyphs Armenian Avestan Balinese Bamum Bassa_Vah Batak Bhaiksuki Bopomofo
Brahmi Buginese Buhid Canadian_Aboriginal Carian Caucasian_Albanian Chakma Cham Cherokee Chorasmian
Coptic Cuneiform Cypriot Cypro_Minoan Deseret Dives_Akuru Dogra Duployan Egyptian_Hieroglyphs
Elbasan Elymaic Ethiopic Georgian Glagolitic Gothic Grantha Gujarati Gunjala_Gondi Gurmukhi
Hanifi_Rohingya Hanunoo Hatran Imperial_Aramaic Inscriptional_Pahlavi Inscriptional_Parthian
Javanese Kaithi Kannada Kayah_Li Kharoshthi Khitan_Small_Script Khmer Khojki Khudawadi Lao Lepcha
Limbu Linear_A Linear_B Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen
Masaram_Gondi Medefaidrin Meetei_Mayek Mende_Kikakui Meroitic_Cursive Meroitic_Hieroglyphs Miao Modi
Mongolian Mro Multani Myanmar Nabataean Nandinagari New_Tai_Lue Newa Nko Nushu
Nyiakeng_Puachue_Hmong Ogham Ol_Chiki Old_Hungarian Old_Italic Old_North_Arabian Old_Permic
Old_Persian Old_Sogdian Old_South_Arabian Old_Turkic Old_Uyghur Oriya Osage Osmanya Pahawh_Hmong
Palmyrene Pau_Cin_Hau Phags_Pa Phoenician Psalter_Pahlavi Rejang Runic Samaritan Saurashtra Sharada
Shavian Siddham SignWriting Sinhala Sogdian Sora_Sompeng Soyombo Sundanese Syloti_Nagri Syriac
Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Takri Tangsa Tangut Thaana Tibetan Tifinagh Tirhuta Toto
Ugaritic Vai Vithkuqi Wancho Warang_Citi Yezidi Yi Zanabazar_Square
""".split()


@functools.lru_cache(maxsize=1 << 16)
def class_of(character: str) -> str:
    """Return a character's class, such as "digit" (Nd) or "letter Latin" (letters and marks)."""
    if character.isspace():
        return WHITE_SPACE
    category = unicodedata.category(character)
    if category == "Nd":
        return DIGIT
    if category[0] == "P":
        return PUNCTUATION
    if category[0] not in "LM":
        return OTHER
    match = _script_pattern().match(character)
    return LETTER + (SCRIPTS[match.lastindex - 1].replace("_", " ") if match else "Unknown")


@functools.cache
def _script_pattern() -> Any:
    """Return a pattern with one group for each script."""
    import regex  # slow to import

    return regex.compile("|".join(rf"(\p{{Script={script}}})" for script in SCRIPTS))
