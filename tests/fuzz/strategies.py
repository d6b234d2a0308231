"""Every kind of input by name, each a strategy."""

from __future__ import annotations

from types import MappingProxyType

from fuzz import configs, files, models, records

STRATEGIES = MappingProxyType(
    {
        "configs": configs.configs(),
        "texts": configs.texts(),
        "keys": configs.overrides(),
        "interventions": configs.interventions(),
        "targets": configs.targets(),
        "options": configs.options(),
        "names": configs.names(),
        "models": models.models(),
        "models' folders": files.folders(),
        "checkpoints": files.checkpoints(),
        "arrays": files.arrays(),
        "only shapes": files.shapes_alone(),
        "images": files.images(),
        "transforms": files.transforms(),
        "built transforms": files.built_transforms(),
        "fills": configs.fills(),
        "environments": files.environments(),
        "records": records.records(),
        "runs": records.runs(),
        "baselines": records.baselines(),
        "caches": records.caches(),
    }
)
