"""Plans on the wire: from and to the messages of proto/plan.proto, exactly."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format
from pydantic import ValidationError

from dataflow.errors import PlanError, in_words
from dataflow.plan.physical import PhysicalPlan, check_size
from dataflow.transport.generated import plan_pb2


def plan_to_proto(plan: PhysicalPlan) -> plan_pb2.PhysicalPlan:
    """The message that carries `plan`.

    Raises:
        PlanError: a number does not fit its field.
    """
    data = plan.model_dump(mode="json")
    for role in data["graph"]["roles"]:
        size = role.pop("size")
        role["word" if isinstance(size, str) else "nodes"] = size
    try:
        return json_format.ParseDict(data, plan_pb2.PhysicalPlan())
    except json_format.ParseError as error:
        raise PlanError(what=f"the plan cannot be sent: {error}") from error


def plan_from_proto(message: plan_pb2.PhysicalPlan) -> PhysicalPlan:
    """The plan that `message` carries.

    Raises:
        PlanError: the plan is too large, or breaks the rules of plans.
    """
    check_size(len(message.nodes), len(message.graph.operators))
    data: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for role in data.get("graph", {}).get("roles", []):
        word = role.pop("word", None)
        role["size"] = role.pop("nodes", None) if word is None else word
    try:
        return PhysicalPlan.model_validate(data)
    except ValidationError as error:
        raise PlanError(what=f"the plan received is not a plan: {in_words(error)}") from error
