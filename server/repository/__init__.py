"""Model repository: a folder in Triton's layout whose models serve.

folder ──folders──> models, versions ──configuration──> what config.pbtxt asks for
                                    └──model_file──> bytes ──placing──> jobs, serving models
repository ──looks, one name at a time──> model_sync
"""
