"""Software bill of materials of the native libraries, in CycloneDX (PEP 770)."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

# A fixed namespace, so that the same build has the same serial number.
_NAMESPACE = uuid.UUID("6f0f2d0e-3c2b-5d0c-9a55-3f6f1f7f9c11")


def sbom_text(version: str, built_with: dict[str, str]) -> str:
    """Return the document. It has no time, so that the same build gives the same bytes.

    Args:
      version: version of the wheel.
      built_with: versions by component: see _components.
    """
    return _document(version, _components(built_with), _tools(built_with))


def merged_sbom(texts: Sequence[str], version: str) -> str:
    """Return the document of a wheel that combines the wheels with these documents."""
    parts: dict[str, Any] = {}
    tools: dict[str, Any] = {}
    for document in map(json.loads, texts):
        parts.update((part["bom-ref"], part) for part in document["components"])
        found = document["metadata"]["tools"]["components"]
        tools.update((f"{tool['name']} {tool['version']}", tool) for tool in found)
    return _document(version, list(parts.values()), list(tools.values()))


def _document(version: str, parts: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    wheel = _package("tf_hvd", version, "application", "tf_hvd")
    wheel["licenses"] = [{"license": {"id": "Apache-2.0"}}]
    seed = json.dumps([wheel, parts], sort_keys=True)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, seed)}",
        "version": 1,
        "metadata": {
            "component": wheel,
            "tools": {"components": tools},
        },
        "components": parts,
        "dependencies": [
            {"ref": wheel["bom-ref"], "dependsOn": sorted(part["bom-ref"] for part in parts)},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _components(built_with: dict[str, str]) -> list[dict[str, Any]]:
    """Components with code, headers or inline functions in the wheel's libraries."""
    tensorflow = _package(
        "tensorflow-cpu",
        built_with["tensorflow"],
        "framework",
        f"tensorflow-{built_with['tensorflow']}",
    )
    tensorflow["description"] = (
        "Headers, with those of Abseil, Eigen and protobuf that it carries; "
        f"the framework library is TensorFlow's, compiled by {built_with['tensorflow compiler']}"
    )
    parts = [tensorflow]
    for family in ("openmpi", "mpich"):
        if built_with[family]:
            part = _package(family, built_with[family], "library", family)
            parts.append({**part, "description": "mpi.h; the library is opened at run time"})
    for library in filter(None, built_with["c libraries"].split(",")):
        name, _, version = library.partition("=")
        parts.append(
            {
                "type": "library",
                "bom-ref": name,
                "name": name,
                "version": version,
                "description": "Headers; the libraries are those of the machine",
            }
        )
    return parts


def _tools(built_with: dict[str, str]) -> list[dict[str, Any]]:
    """Tools that compiled the libraries."""
    tools: list[dict[str, Any]] = [
        {"type": "application", "name": "C++ compiler", "version": built_with["compiler"]}
    ]
    if built_with["nvrtc"]:
        nvrtc = _package("nvidia-cuda-nvrtc-cu12", built_with["nvrtc"], "application", "nvrtc")
        tools.append({**nvrtc, "description": "Compiles the GPU code"})
    return tools


def _package(name: str, version: str, kind: str, reference: str) -> dict[str, Any]:
    """A component with this name on PyPI."""
    # The plus sign of a local version is encoded like this in a package URL.
    url = f"pkg:pypi/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}"
    return {"type": kind, "bom-ref": reference, "name": name, "version": version, "purl": url}
