"""Ako: a stateful dataflow engine for decentralised training of deep networks. This module is the public API.

Names are imported when they are first used, so that agents and light commands never load NumPy.
"""

import importlib
from typing import TYPE_CHECKING, Any

from dataflow import compiled

if TYPE_CHECKING:
    from dataflow.clock import Clock, SystemClock
    from dataflow.engine.job_life import JobState
    from dataflow.engine.memory_driver import MemoryDriver
    from dataflow.engine.resumption import tensor_types_of
    from dataflow.errors import (
        AkoError,
        AuthError,
        BundleError,
        CheckpointError,
        ConfigError,
        DataError,
        GraphError,
        JobFailedError,
        MasterError,
        OperatorError,
        PlanError,
        WireError,
    )
    from dataflow.graph.checks import check
    from dataflow.graph.logical import LogicalGraph
    from dataflow.graph.render import as_dot, as_mermaid, as_text
    from dataflow.graph.routes import Route
    from dataflow.message import Message, Sharded, Tick
    from dataflow.node_context import NodeContext
    from dataflow.observe.events import JobEvent
    from dataflow.observe.record import installed_versions, make_record
    from dataflow.observe.series import Series
    from dataflow.operators_api import Artifact, Checkpoint, Emissions, EndOfData, Gather, Operator, Sample
    from dataflow.plan.compile import compile_graph
    from dataflow.plan.job import JobSpec, Keep, Resume, StopRules
    from dataflow.plan.physical import PhysicalPlan
    from dataflow.plan.placement import place
    from dataflow.plan.render import plan_dot, plan_mermaid, plan_text
    from dataflow.ports import In, Out
    from dataflow.reports import NodeStatistics, OperatorReport
    from dataflow.runtime.auth import find_authority, find_credentials, find_token
    from dataflow.runtime.bundle import Bundle, make_bundle
    from dataflow.runtime.client import Client
    from dataflow.runtime.connection_costs import measure_connection
    from dataflow.runtime.local_cluster import LocalCluster
    from dataflow.runtime.replies import JobStatus
    from dataflow.runtime.state_dir import default_state_dir
    from dataflow.sim.costs import TaskKind
    from dataflow.sim.elasticity import as_simulated
    from dataflow.sim.faults import parse_fault
    from dataflow.sim.model import ClusterModel
    from dataflow.sim.profile import Profile, profile_job
    from dataflow.sim.run import SimRun
    from dataflow.sim.simulator import Simulator
    from dataflow.state import Reads, State, StateElement, StateKind, Writes

__all__ = [
    "AkoError",
    "Artifact",
    "AuthError",
    "Bundle",
    "BundleError",
    "Checkpoint",
    "CheckpointError",
    "Client",
    "Clock",
    "ClusterModel",
    "ConfigError",
    "DataError",
    "Emissions",
    "EndOfData",
    "Gather",
    "GraphError",
    "In",
    "JobEvent",
    "JobFailedError",
    "JobSpec",
    "JobState",
    "JobStatus",
    "Keep",
    "LocalCluster",
    "LogicalGraph",
    "MasterError",
    "MemoryDriver",
    "Message",
    "NodeContext",
    "NodeStatistics",
    "Operator",
    "OperatorError",
    "OperatorReport",
    "Out",
    "PhysicalPlan",
    "PlanError",
    "Profile",
    "Reads",
    "Resume",
    "Route",
    "Sample",
    "Series",
    "Sharded",
    "SimRun",
    "Simulator",
    "State",
    "StateElement",
    "StateKind",
    "StopRules",
    "SystemClock",
    "TaskKind",
    "Tick",
    "WireError",
    "Writes",
    "as_dot",
    "as_mermaid",
    "as_simulated",
    "as_text",
    "check",
    "compile_graph",
    "default_state_dir",
    "find_authority",
    "find_credentials",
    "find_token",
    "installed_versions",
    "make_bundle",
    "make_record",
    "measure_connection",
    "parse_fault",
    "place",
    "plan_dot",
    "plan_mermaid",
    "plan_text",
    "profile_job",
    "tensor_types_of",
]

compiled.use()

_HOMES = {
    "clock": "Clock SystemClock",
    "engine.job_life": "JobState",
    "engine.memory_driver": "MemoryDriver",
    "engine.resumption": "tensor_types_of",
    "reports": "NodeStatistics OperatorReport",
    "errors": "AkoError AuthError BundleError CheckpointError ConfigError DataError GraphError JobFailedError "
    "MasterError OperatorError PlanError WireError",
    "graph.checks": "check",
    "graph.logical": "LogicalGraph",
    "graph.render": "as_dot as_mermaid as_text",
    "graph.routes": "Route",
    "message": "Message Sharded Tick",
    "node_context": "NodeContext",
    "observe.events": "JobEvent",
    "observe.record": "installed_versions make_record",
    "observe.series": "Series",
    "operators_api": "Artifact Checkpoint Emissions EndOfData Gather Operator Sample",
    "plan.compile": "compile_graph",
    "plan.job": "JobSpec Keep Resume StopRules",
    "plan.physical": "PhysicalPlan",
    "plan.placement": "place",
    "plan.render": "plan_dot plan_mermaid plan_text",
    "ports": "In Out",
    "runtime.auth": "find_authority find_credentials find_token",
    "runtime.bundle": "Bundle make_bundle",
    "runtime.client": "Client",
    "runtime.connection_costs": "measure_connection",
    "runtime.local_cluster": "LocalCluster",
    "runtime.replies": "JobStatus",
    "runtime.state_dir": "default_state_dir",
    "sim.costs": "TaskKind",
    "sim.elasticity": "as_simulated",
    "sim.faults": "parse_fault",
    "sim.model": "ClusterModel",
    "sim.profile": "Profile profile_job",
    "sim.run": "SimRun",
    "sim.simulator": "Simulator",
    "state": "Reads State StateElement StateKind Writes",
}
_MODULES = {name: f"dataflow.{module}" for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        message = f"module 'dataflow' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
