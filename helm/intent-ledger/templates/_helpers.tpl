{{/*
A CronJob's name may have 52 characters, and the longest suffix is "-reconcile". A release's name may have
dots, a Service's may not.
*/}}
{{- define "intent-ledger.fullname" -}}
{{- $name := printf "%s-%s" .Release.Name .Chart.Name -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- $name = .Release.Name -}}
{{- end -}}
{{- $name | replace "." "-" | trunc 42 | trimAll "-" -}}
{{- end -}}

{{/* What a pod is selected by: a list of the root and a component. */}}
{{- define "intent-ledger.selectorLabels" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "intent-ledger.labels" -}}
{{ include "intent-ledger.selectorLabels" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "intent-ledger.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
What every pod has in common. No service links: for a Service named intent-ledger Kubernetes would add
variables such as INTENT_LEDGER_PORT, which share the prefix of our settings.
*/}}
{{- define "intent-ledger.pod" -}}
serviceAccountName: {{ .Values.serviceAccountName }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  # The image has a numeric user that is not root. Which one is not said here, since some clusters
  # insist on a number of their own.
  runAsNonRoot: true
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "intent-ledger.container" -}}
name: intent-ledger
image: {{ include "intent-ledger.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* By a variable: a flag would show the password in the list of processes. */}}
{{- define "intent-ledger.storeEnv" -}}
- name: INTENT_LEDGER_STORE
  valueFrom:
    secretKeyRef:
      name: {{ .Values.store.existingSecret.name }}
      key: {{ .Values.store.existingSecret.key }}
{{- end -}}

{{/* The ConfigMap with the policy, or nothing. */}}
{{- define "intent-ledger.policyConfigMap" -}}
{{- if .Values.existingConfigMap.name -}}
{{ .Values.existingConfigMap.name }}
{{- else if .Values.policy -}}
{{ include "intent-ledger.fullname" . }}-policy
{{- end -}}
{{- end -}}

{{/*
The sleep of the preStop hook, then what a stop may take: gRPC and HTTP may each use up the grace, one
after the other, and some seconds to write what is queued and to close the store.
*/}}
{{- define "intent-ledger.terminationGracePeriodSeconds" -}}
{{- $grace := trimSuffix "s" .Values.config.shutdown_grace | int -}}
{{- add .Values.preStopSleepSeconds (mul 2 $grace) 10 -}}
{{- end -}}
