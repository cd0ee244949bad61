"""What makes a run of a comparison the run that it is, besides the words with which it is asked for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from ako_jobs.jobs import Prepared
from dataflow import installed_versions
from dataflow.artifact_names import RECORD_FILE
from dataflow.graph.logical import canonical_json

IDENTITY_FILE = "identity.json"
"""Holds the identity of a run, beside its record."""


class Identity(BaseModel):
    """Of a run.

    Args:
        spec: SHA-256, in hex, of what is submitted: graph, configuration, nodes, seed, stop rules.
        code: digest of the job's own files; see `Bundle`. Empty if it has none.
        ako: version of Ako.
        record: SHA-256, in hex, of the record as it was kept; empty while there is none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    spec: str
    code: str
    ako: str
    record: str = ""

    @classmethod
    def of(cls, prepared: Prepared) -> Self:
        """The identity of a job that is ready to be submitted."""
        rest = prepared.spec.model_dump(mode="json", exclude={"graph", "warnings"})
        text = canonical_json(prepared.graph) + json.dumps(rest, sort_keys=True)
        return cls(
            spec=hashlib.sha256(text.encode()).hexdigest(),
            code=prepared.bundle.digest if prepared.bundle else "",
            ako=installed_versions()["ako-dataflow"],
        )

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The identity that is kept in a run's folder; None if there is none that can be read."""
        try:
            return cls.model_validate_json((folder / IDENTITY_FILE).read_text())
        except (OSError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        """Keep it in a run's folder, beside the record that it is of."""
        kept = self.with_record(folder)
        (folder / IDENTITY_FILE).write_text(kept.model_dump_json(indent=2) + "\n")

    def with_record(self, folder: Path) -> Self:
        """This identity, of a run whose record is the one in the folder."""
        data = (folder / RECORD_FILE).read_bytes()
        return self.model_copy(update={"record": hashlib.sha256(data).hexdigest()})
