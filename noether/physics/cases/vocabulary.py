"""The usual names that simulation files give to arrays and numbers, and the physics that these names indicate."""

import re
import unicodedata
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from noether.physics.cases.case_map import CASE
from noether.physics.cases.units import is_unit, of_one_quantity

Physics = Literal["flow", "solid", "heat", "unknown"]

TENSOR = 6
"""The number of components of a symmetric tensor."""


@dataclass(frozen=True)
class KnownField:
    """A usual field: its name in a map, a pattern of its names in files, its possible component counts, and its unit.

    The units LENGTH and STRESS depend on the unit system of the files. is_evidence: whether the name identifies the
    physics; U and T, for example, occur in several kinds of physics.
    """

    name: str
    pattern: str
    components: tuple[int, ...]
    unit: str
    is_evidence: bool = True


LENGTH, STRESS = "length", "stress"

KNOWN_FIELDS: dict[Physics, tuple[KnownField, ...]] = {
    "flow": (
        KnownField("pressure", r"(p|(static_)?pressure)(_?mean)?(_?trim)?", (1,), "Pa"),
        KnownField("velocity", r"velocity(_?mean)?(_?trim)?", (3,), "m/s"),
        KnownField("velocity", r"(u|v)(_?mean)?(_?trim)?", (3,), "m/s", is_evidence=False),
        KnownField("wall_shear", r"(.*wall_?shear|wss).*", (3,), "Pa"),
        KnownField("temperature", r"(t|temp|temperature)(_?mean)?", (1,), "K", is_evidence=False),
    ),
    # CalculiX and Abaqus use the names U, S and E for solids, HFL and NT11 for heat.
    "solid": (
        KnownField("displacement", r"disp(lacements?)?|deformation", (3,), LENGTH),
        KnownField("displacement", r"u", (3,), LENGTH, is_evidence=False),
        KnownField("stress", r"s|stress(_?tensor)?|sigma|cauchy(_?stress)?", (TENSOR,), STRESS),
        KnownField("strain", r"e|le|to_?strain|strain(_?tensor)?|epsilon", (TENSOR,), "1"),
        KnownField("von_mises", r"(s_?|stress_?)?(von_?mises|mises|equivalent)(_?stress)?", (1,), STRESS),
        KnownField("principal_stress", r"(s_?|stress_?)principals?", (3, 4), STRESS),
        KnownField("reaction_force", r"rf|forc|reaction(_?forces?)?", (3,), "N"),
        KnownField("temperature", r"nt(11)?|nd_?temp|t|temp|temperature", (1,), "K", is_evidence=False),
    ),
    "heat": (
        KnownField("temperature", r"nt(11)?|nd_?temp|t|temp|temperature", (1,), "K"),
        KnownField("heat_flux", r"hfl|flux|heat_?flux|q", (3,), "W/m²"),
    ),
    "unknown": (),
}
"""The usual fields, by physics."""
FLOW_NUMBERS = {
    "drag_coefficient": re.compile(r"(average_)?cd$"),
    "lift_coefficient": re.compile(r"(average_)?cl$"),
    "reference_area": re.compile(r"(frontal_area|ref(erence)?_?area|a_?ref)$"),
    "wind_speed": re.compile(r"(wind_?speed|inlet_velocity|freestream_velocity|(mag_)?u_?inf)$"),
}
"""Force coefficients, and the numbers that define them, {name in a map: pattern of the names in files}."""
FLOW_UNITS = {"drag_coefficient": "1", "lift_coefficient": "1", "reference_area": "m²", "wind_speed": "m/s"}
RESULTS = re.compile(
    r"(^|_)(reactions?|forces?|moments?|torque|drag|lift|c[dls]|cm[xyz]?|nu|nusselt|coeff(icient)?s?|drop|loss(es)?"
    r"|efficiency|max(im(um|al))?|min(im(um|al))?|peak|mean|average|avg|total|heat|deflection|stiffness|compliance|gain)"
    r"(_|$)|eigen(freq|value)|natural_freq|resonan|(^|_)s[1-9]{2}(_|$)|inductan|capacitan|radiated|dissipat"
)
"""Words in the names of computed numbers, which a model is to predict; other letters may follow some of the words."""
RESULT_FILES = re.compile(r"(^|_)(result|output|response)s?(_|$)")
"""Words in the names of files whose numbers are results, provided that the inputs are in other files."""
GIVEN = re.compile(
    r"(^|_)(applied|imposed|prescribed|inlet|ambient|load|reference|ref|input|film|friction|expansion)(_|$)"
)
"""Words in the names of numbers given to a simulation; they take precedence over the words in RESULTS."""
ANGLES = re.compile(r"(^|_)(phases?|\w*angle|arg(ument)?|azimuth)(_|$)")
"""Words in the names of fields that may be angles."""
WAVES = re.compile(r"(^|_)(re|im|real|imag(inary)?)(_|$)")
"""Words in the names of fields that are the real or imaginary parts of complex fields."""
TURNS = (("deg", (-180.0, 180.0)), ("deg", (0.0, 360.0)), ("rad", (-np.pi, np.pi)), ("rad", (0.0, 2 * np.pi)))
"""Units of angles, and the ranges at whose ends the angles wrap around."""
STRESSES = {"mm": "MPa"}
"""{unit of length: unit of stress} in solvers without units, for forces in N; other units of length go with Pa."""
_BRACKETS = re.compile(r"(?P<name>.*?\S)[\s_]*(?:\[(?P<square>[^\[\]]*)\]|\((?P<round>(?:[^()]|\([^()]*\))*)\))$")
_SUFFIXED = re.compile(
    r"(.*[^\W_])_(mm|cm|km|um|µm|hPa|kPa|MPa|GPa|bar|mbar|kN|Nm|kJ|MJ|kW|MW|kg|deg|degC|kHz|MHz|GHz|Hz|THz|rpm|dB|dBi|K"
    r"|[pnuµ]F|[nuµm]H|mT|[mk]A|[mk]V|ms)$"
)
"""A name that ends in _ and a unit, such as length_mm; units that are also words or other symbols are left out."""


def name_and_unit(name: str) -> tuple[str, str]:
    """Split a name such as "hole radius [mm]", "T (°C)" or "length_mm" into name and unit ("" if it has no unit)."""
    if suffixed := _SUFFIXED.match(name.strip()):
        return suffixed[1], suffixed[2]
    found = _BRACKETS.match(name.strip())
    unit = (found["square"] or found["round"] or "").strip() if found else ""
    if not found or not is_unit(unit) or (unit == "T" and found["name"].lower().startswith("temp")):
        return name.strip(), ""
    return found["name"], unit


def plain_name(name: str) -> str:
    """Return a name in lower-case letters, digits and _, as required in maps; "" if no such character remains."""
    latin = "".join(_latin(letter) for letter in unicodedata.normalize("NFC", name.replace(CASE, "")))
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", latin)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return plain if not plain or plain[0].isalpha() else f"a_{plain}"


_UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"}


def _latin(letter: str) -> str:
    """Return a letter in ASCII: ü becomes ue, é e, and σ sigma; other letters are unchanged."""
    if unicodedata.name(letter, "").startswith("GREEK"):
        return unicodedata.name(letter).split()[3].lower()
    return _UMLAUTS.get(letter) or "".join(
        c for c in unicodedata.normalize("NFD", letter) if not unicodedata.combining(c)
    )


def known_field(name: str, components: int, physics: Physics) -> KnownField | None:
    """Return the usual field of `physics` that fits an array's name, unit and number of components, or None."""
    own, unit = name_and_unit(name)
    plain = plain_name(own)
    for field in KNOWN_FIELDS[physics]:
        usual = {LENGTH: "m", STRESS: "Pa"}.get(field.unit, field.unit)
        fits = components in field.components and re.fullmatch(field.pattern, plain)
        if fits and (not unit or of_one_quantity(unit, usual)):  # a flux in mol/(m²·s) is not a heat flux
            return field
    return None


def is_length(unit: str) -> bool:
    """Return whether a unit is a unit of length; False for "" (no unit is stated)."""
    return bool(unit) and of_one_quantity(unit, "m")


def period_of(name: str, low: float, high: float) -> tuple[str, tuple[float, float]] | None:
    """Return the unit and range of a field if its name and values show an angle that wraps around, else None.

    The values of such an angle reach both ends of the range, to 2 % of its width; those of an angle of attack do not.
    """
    plain = plain_name(name_and_unit(name)[0])
    for unit, (start, end) in TURNS if ANGLES.search(plain) else ():
        slack = 0.02 * (end - start)
        if start - 1e-3 * slack <= low <= start + slack and end - slack <= high <= end + 1e-3 * slack:
            return unit, (start, end)
    return None


def number_name(column: str) -> str:
    """Return a number's name in a map: its name in FLOW_NUMBERS if a pattern there fits, else its plain name."""
    plain = plain_name(name_and_unit(column)[0])
    return next((name for name, pattern in FLOW_NUMBERS.items() if pattern.match(plain)), plain)


def is_result(column: str) -> bool:
    """Return whether a number, judging by its name, is computed by a simulation rather than given to it."""
    plain = plain_name(name_and_unit(column)[0])
    return bool(RESULTS.search(plain)) and not GIVEN.search(plain)


def is_of_results(file: str) -> bool:
    """Return whether a file, judging by its name, holds results."""
    return bool(RESULT_FILES.search(plain_name(file)))


def physics_of(arrays: Iterable[tuple[str, int]], numbers: Collection[str], *, is_openfoam: bool) -> Physics:
    """Return the physics indicated by arrays, given as (name, components), and by the names of numbers."""
    if is_openfoam or any(number_name(column) in FLOW_NUMBERS for column in numbers):
        return "flow"
    arrays = list(arrays)
    waves = any(WAVES.search(plain_name(name)) or name_and_unit(name)[1] == "dB" for name, _ in arrays)
    found = [(physics, field) for own in arrays for physics in KNOWN_FIELDS if (field := known_field(*own, physics))]
    shown = {physics for physics, field in found if field.is_evidence}
    of_flow = {field.name for physics, field in found if physics == "flow"}
    moves = any(components == 3 and is_length(name_and_unit(name)[1]) for name, components in arrays)
    if moves or ("solid" in shown and "wall_shear" not in of_flow):
        return "solid"
    if "flow" in shown and not (waves and of_flow <= {"pressure"}):  # a sound pressure indicates no flow
        return "flow"
    return "heat" if "heat" in shown else "unknown"
